import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from accuracy.core.dtype import FORMATS, rounding_band
from accuracy.execute.plan import plan
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from tests.measuring import TINY, configuration
from tests.real_ranks import RealRanks


def steps(*overrides: str, folders: Sequence[Path] = ()) -> pd.DataFrame:
    words = *TINY, "kernel=eager", "reruns.trace=true", *overrides
    plans = plan(configuration(*words, folders=folders), free_bytes=None)
    pipeline = Pipeline("test", Cache(None, 0.0))
    measured = [pipeline.measure(each.case) for each in plans if each.unsupported is None]
    assert all(each.rows[0]["status"] == "ok" for each in measured), [each.rows[0]["reason"] for each in measured]
    return pd.DataFrame([row for each in measured for row in each.table("steps")])


def fault(name: str, *more: str) -> pd.DataFrame:
    parts = ("forward", "backward")
    words = [f"+variant.planted.{part}=tests.fault.planted:{name}" for part in parts]
    return steps("variant=[]", *words, "+variant.planted.sharding=contiguous", *more)


def outside(found: pd.DataFrame) -> pd.DataFrame:
    measured = found[found["state"].notna()]
    off = measured[~(measured["error_rel"] <= measured["band"])]
    return off.assign(_back=off["way"] == "backward").sort_values(["_back", "step", "rank"])


def test_every_state_of_a_ring_is_seen() -> None:
    found = steps("variant=ring", "dtype=float64", "world_size=4")
    calls = 4 * 5 // 2  # under a causal mask rank r sees r + 1 blocks
    for state in ("partial", "running"):
        for tensor in ("out", "lse", "dq", "dk", "dv"):
            assert len(found[(found["state"] == state) & (found["tensor"] == tensor)]) == calls, (state, tensor)


def test_a_stale_buffer_is_found_at_the_second_step_of_the_first_rank_that_has_one() -> None:
    more = ("+variant.planted.query_chunk=8", "+variant.planted.key_chunk=8")
    found = outside(fault("bpt_stale_buffer", "dtype=float64", "world_size=4", *more))
    assert set(found["way"]) == {"backward"}
    assert set(found["state"]) == {"running"}  # each chunk's own gradients are right
    assert found["rank"].min() == 1


def test_a_step_says_whose_keys_it_saw() -> None:
    found = steps("variant=zigzag", "dtype=float64", "world_size=4", "problem.mask=full")
    assert set(found["source"]) == {0, 1, 2, 3}
    assert (found[found["step"] == 0]["source"] == found[found["step"] == 0]["rank"]).all()
    assert set(steps("variant=llama3", "dtype=float64", "world_size=2", "problem.mask=full")["source"]) == {-1}


def test_a_wrong_mask_is_found_in_the_first_partial() -> None:
    first = outside(fault("diagonal_not_causal", "dtype=float64", "world_size=2")).iloc[0]
    assert (first["way"], first["rank"], first["step"], first["state"]) == ("forward", 0, 0, "partial")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_a_state_that_the_kernel_carries_is_seen_after_every_block() -> None:
    found = steps("variant=ring", "kernel=triton_carry", "dtype=float32", "world_size=3", "problem.batch=1")
    forward = found[found["way"] == "forward"]
    assert set(forward["state"]) == {"running"}
    assert len(forward[forward["tensor"] == "out"]) == 3 * 4 // 2
    assert outside(found).empty, outside(found).head().to_string()


def test_an_attention_that_needs_ranks_of_its_own_has_no_steps() -> None:
    fn = f"variant.fn={Path(__file__).parents[1] / 'variant' / 'somebody.py'}:contiguous"
    chosen = configuration(*TINY, "variant=callable", fn, "world=processes", "world_size=1", "reruns.trace=true")
    pool = RealRanks((1,), "gloo", timeout=600.0)
    try:
        (each,) = plan(chosen, free_bytes=None)
        found = Pipeline("test", Cache(None, 0.0), pool.run).measure(each.case)
    finally:
        pool.close()
    assert found.rows[0]["status"] == "ok", found.rows[0]["reason"]
    assert not found.table("steps")


def test_the_band_is_between_rounding_and_faults() -> None:
    for dtype, form in FORMATS.items():
        assert form.unit_roundoff < rounding_band("out", dtype) < 0.05
    assert rounding_band("lse", "bfloat16") == rounding_band("out", "float32")
