"""Inference paths against prefill of the same tokens: which bits a cache, its pages and its steps may not change."""

import pandas as pd
import pytest

from accuracy.core.errors import ConfigError
from accuracy.paths.table import pairs
from tests.measuring import measure

CPU = ("device=cpu", "dtype=bfloat16")


def label(a: str, b: str, *words: str) -> pd.Series:
    """Of out and lse over all ranks."""
    found = pairs(measure(*CPU, f"path_a={a}", f"path_b={b}", *words))
    return found[(found["rank"] == -1) & (found["label"] != "")].set_index("tensor")["label"]


@pytest.mark.stress(4, "kernel", "page")
@pytest.mark.parametrize("kernel", ["eager", "chunked", "torch_flash"])
@pytest.mark.parametrize("page", [1, 7, 16, 96])
def test_where_a_key_lies_changes_no_bit(kernel: str, page: int) -> None:
    """Pages at shuffled places are gathered into what a cache in one memory holds."""
    found = label(f"decode+{kernel}", f"decode/page:{page}+{kernel}", "problem.seqlen=96")
    assert found.tolist() == ["equal", "equal"]


@pytest.mark.stress(3)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("decode", "chunked_prefill/chunk:1"),
        ("decode/splits:3", "decode/splits:3/page:8"),
        ("chunked_prefill/chunk:96", "single_device@1"),
        ("prefix_cache/prefix:96", "single_device@1"),
        ("prefix_cache/prefix:48", "chunked_prefill/chunk:48"),
        ("decode/walk:true/page:96", "decode"),
        ("decode_context_parallel@1", "single_device@1"),
        ("decode/wire:float8_e4m3", "decode/wire:float8_e4m3/page:8"),
        ("prefix_cache/prefix:48/wire:float8_e5m2", "chunked_prefill/chunk:48/wire:float8_e5m2"),
    ],
)
def test_paths_of_the_same_kernel_calls_are_equal(a: str, b: str) -> None:
    assert label(f"{a}+eager", f"{b}+eager").tolist() == ["equal", "equal"]


@pytest.mark.stress(3)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("decode/splits:4", "decode/splits:5"),
        ("decode/walk:true/page:8", "decode/page:8"),
        ("decode_context_parallel@4", "decode_context_parallel/reduce_dtype:accumulate@4"),
        ("decode_context_parallel/reduce_dtype:accumulate@4",
         "decode_context_parallel/reduce_dtype:accumulate/lse_base:two@4"),
        ("decode_context_parallel@4", "decode_context_parallel@2"),
    ],
)  # fmt: skip
def test_another_split_merge_or_reduction_is_seen_and_is_rounding(a: str, b: str) -> None:
    found = label(f"{a}+eager", f"{b}+eager")
    assert "beyond" not in found.tolist()
    assert found.tolist() != ["equal", "equal"]


def test_pages_that_are_walked_without_pages_are_refused() -> None:
    with pytest.raises(ConfigError, match="walk=true goes page by page"):
        measure(*CPU, "path_a=decode/walk:true")
