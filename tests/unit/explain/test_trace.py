"""A trace: every kernel call of a schedule beside the reference."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from tests.measuring import TINY, cases, pipeline
from tests.variants import schedules, skip_if_bound_to_a_kernel, skip_if_not_traced


def steps(*overrides: str, folders: Sequence[Path] = ()) -> pd.DataFrame:
    by, words = pipeline(), (*TINY, "kernel=eager", "reruns.trace=true", *overrides)
    measured = [by.measure(case) for case in cases(*words, folders=folders)]
    assert all(each.rows[0]["status"] == "ok" for each in measured), [each.rows[0]["reason"] for each in measured]
    return pd.DataFrame([row for each in measured for row in each.table("steps")])


def outside(found: pd.DataFrame) -> pd.DataFrame:
    off = found[~(found["error_rel"] <= found["band"])]
    return off.assign(_back=off["way"] == "backward").sort_values(["_back", "step", "rank"])


def fault(name: str, *more: str) -> pd.DataFrame:
    words = [f"+variant.planted.{part}=tests.unit.fault.planted:{name}" for part in ("forward", "backward")]
    return outside(steps("variant=[]", *words, "+variant.planted.sharding=contiguous", "dtype=float64", *more))


def test_every_kernel_call_of_a_ring_is_seen_and_a_step_says_whose_keys_it_saw() -> None:
    found = steps("variant=ring", "dtype=float64", "world_size=4")
    calls = 4 * 5 // 2  # under a causal mask rank r sees r + 1 blocks
    assert dict(found["tensor"].value_counts()) == dict.fromkeys(("out", "lse", "dq", "dk", "dv"), calls)
    found = steps("variant=zigzag", "dtype=float64", "world_size=4", "problem.mask=full")
    assert set(found["source"]) == {0, 1, 2, 3}
    assert (found[found["step"] == 0]["source"] == found[found["step"] == 0]["rank"]).all()
    assert set(steps("variant=llama3", "dtype=float64", "world_size=2", "problem.mask=full")["source"]) == {-1}


def test_a_fault_is_found_in_the_first_step_that_has_it() -> None:
    """A wrong mask; a stale buffer leaves the chunks' own gradients right."""
    first = fault("diagonal_not_causal", "world_size=2").iloc[0]
    assert (first["way"], first["rank"], first["step"]) == ("forward", 0, 0)
    chunks = "+variant.planted.query_chunk=8", "+variant.planted.key_chunk=8"
    assert fault("bpt_stale_buffer", "world_size=4", *chunks).empty


MASKS = {
    "causal": "problem.mask=causal", "full": "problem.mask=full", "window": "problem.window=10",
    "documents": "problem.documents=17+40+39",
}  # fmt: skip


@pytest.mark.stress(6, "mask", "dtype")
@pytest.mark.parametrize("variant", schedules())
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_the_steps_of_a_healthy_schedule_stay_inside_the_band(variant: str, mask: str, dtype: str) -> None:
    skip_if_bound_to_a_kernel(variant)
    skip_if_not_traced(variant)
    if mask not in ("causal", "full") and variant in ("split_kv", "te_p2p"):
        pytest.skip(f"{variant} states no {mask}")
    words = f"variant={variant}", f"dtype={dtype}", "world_size=[1,2,3,4,8]", "unusable=record", *MASKS[mask].split()
    found = outside(steps(*words))
    assert found.empty, found.head().to_string()


def test_rows_whose_tokens_are_not_known_have_no_steps() -> None:
    """Keys that the wire has rounded: the blocks of other ranks are of tokens that cannot be told."""
    found = steps("variant=ring", "dtype=float64", "world_size=4", "precision.wire=bfloat16")
    assert (found["source"] == found["rank"]).all()
    assert steps("variant=ring", "inputs=tied", "dtype=float64", "world_size=2").empty
