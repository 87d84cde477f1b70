"""Inference paths against prefill of the same tokens: which bits a cache and its steps may not change."""

import pytest

from accuracy.core.errors import ConfigError
from accuracy.paths.table import pairs
from tests.measuring import measure

CPU = ("device=cpu", "dtype=bfloat16")


def labels(a: str, b: str) -> list[str]:
    """Of out and lse over all ranks."""
    found = pairs(measure(*CPU, f"path_a={a}", f"path_b={b}", "problem.seqlen=96"))
    return found.loc[(found["rank"] == -1) & (found["label"] != ""), "label"].to_list()


@pytest.mark.stress(6)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("decode+eager", "chunked_prefill/chunk:1+eager"),
        ("chunked_prefill/chunk:96+eager", "single_device@1+eager"),
        ("prefix_cache/prefix:48+eager", "chunked_prefill/chunk:48+eager"),
        ("decode/page:96+eager", "decode+eager"),
        ("decode_context_parallel@1+eager", "single_device@1+eager"),
        ("split_kv/splits:1@1+eager", "single_device@1+eager"),
        ("prefix_cache/prefix:48/wire:float8_e5m2+eager", "chunked_prefill/chunk:48/wire:float8_e5m2+eager"),
    ],
)  # fmt: skip
def test_paths_of_the_same_kernel_calls_are_equal(a: str, b: str) -> None:
    assert labels(a, b) == ["equal", "equal"]


def test_pages_and_parts_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="page=8 with splits=2"):
        measure(*CPU, "path_a=decode/page:8/splits:2")
