"""Inference paths against prefill of the same tokens: which bits a cache and its steps may not change."""

import pytest

from accuracy.paths.table import pairs
from tests.measuring import measure


@pytest.mark.parametrize(("a", "b"), [
    ("decode", "chunked_prefill/chunk:1"), ("chunked_prefill/chunk:96", "single_device@1"),
    ("prefix_cache/prefix:48", "chunked_prefill/chunk:48"), ("decode/page:96", "decode"),
    ("split_kv/splits:1@1", "single_device@1"),
    ("prefix_cache/prefix:48/wire:float8_e5m2", "chunked_prefill/chunk:48/wire:float8_e5m2"),
])  # fmt: skip
def test_paths_of_the_same_kernel_calls_are_equal(a: str, b: str) -> None:
    paths = (f"path_a={a}+eager", f"path_b={b}+eager")
    found = pairs(measure("device=cpu", "dtype=bfloat16", *paths, "problem.seqlen=96"))
    assert found.loc[(found["rank"] == -1) & (found["label"] != ""), "label"].to_list() == ["equal", "equal"]
