"""A trace: every state of a schedule beside the reference, and what it accounts for: every visible pair computed once,
every add made once, the last state returned."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from accuracy.core.dtype import FORMATS, rounding_band
from tests import planting
from tests.measuring import TINY, cases, pipeline
from tests.variants import schedules, skip_if_bound_to_a_kernel, skip_if_not_traced

COLUMNS = ["way", "rank", "tensor", "finding", "count"]


def steps(*overrides: str, folders: Sequence[Path] = ()) -> pd.DataFrame:
    by, words = pipeline(), (*TINY, "kernel=eager", "reruns.trace=true", *overrides)
    measured = [by.measure(case) for case in cases(*words, folders=folders)]
    assert all(each.rows[0]["status"] == "ok" for each in measured), [each.rows[0]["reason"] for each in measured]
    return pd.DataFrame([row for each in measured for row in each.table("steps")])


def findings(found: pd.DataFrame) -> pd.DataFrame:
    assert len(found)
    return found.reindex(columns=[*found.columns, *set(COLUMNS) - set(found)]).dropna(subset="finding")


def outside(found: pd.DataFrame) -> pd.DataFrame:
    measured = found[found["state"].notna()]
    off = measured[~(measured["error_rel"] <= measured["band"])]
    return off.assign(_back=off["way"] == "backward").sort_values(["_back", "step", "rank"])


def fault(name: str, *more: str) -> pd.DataFrame:
    words = [f"+variant.planted.{part}=tests.unit.fault.planted:{name}" for part in ("forward", "backward")]
    return outside(steps("variant=[]", *words, "+variant.planted.sharding=contiguous", "dtype=float64", *more))


def test_every_state_of_a_ring_is_seen_and_a_step_says_whose_keys_it_saw() -> None:
    found = steps("variant=ring", "dtype=float64", "world_size=4")
    calls = 4 * 5 // 2  # under a causal mask rank r sees r + 1 blocks
    for state in ("partial", "running"):
        for tensor in ("out", "lse", "dq", "dk", "dv"):
            assert len(found[(found["state"] == state) & (found["tensor"] == tensor)]) == calls, (state, tensor)
    found = steps("variant=zigzag", "dtype=float64", "world_size=4", "problem.mask=full")
    assert set(found["source"]) == {0, 1, 2, 3}
    assert (found[found["step"] == 0]["source"] == found[found["step"] == 0]["rank"]).all()
    assert set(steps("variant=llama3", "dtype=float64", "world_size=2", "problem.mask=full")["source"]) == {-1}


def test_a_fault_is_found_in_the_first_step_that_has_it() -> None:
    """A wrong mask in the first partial; a stale buffer, whose chunks' own gradients are right, from rank 1 on."""
    first = fault("diagonal_not_causal", "world_size=2").iloc[0]
    assert (first["way"], first["rank"], first["step"], first["state"]) == ("forward", 0, 0, "partial")
    stale = fault("bpt_stale_buffer", "world_size=4", "+variant.planted.query_chunk=8", "+variant.planted.key_chunk=8")
    assert set(stale["way"]) == {"backward"}
    assert set(stale["state"]) == {"running"}
    assert stale["rank"].min() == 1


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_a_state_that_the_kernel_carries_is_seen_after_every_block() -> None:
    found = steps("variant=ring", "kernel=triton_carry", "dtype=float32", "world_size=3", "problem.batch=1",
                  "problem.seqlen=12")  # fmt: skip
    forward = found[found["way"] == "forward"]
    assert set(forward["state"]) == {"running"}
    assert len(forward[forward["tensor"] == "out"]) == 3 * 4 // 2
    assert outside(found).empty, outside(found).head().to_string()


def test_the_band_is_between_rounding_and_faults() -> None:
    for dtype, form in FORMATS.items():
        assert form.unit_roundoff < rounding_band("out", dtype) < 0.05
    assert rounding_band("lse", "bfloat16") == rounding_band("out", "float32")


MASKS = {
    "causal": "problem.mask=causal", "full": "problem.mask=full", "window": "problem.window=10",
    "documents": "problem.documents=17+40+39", "dropout": "problem.dropout=0.3",
    "padding": "problem.padding=end problem.mask=full problem.seqlen=91",
}  # fmt: skip


@pytest.mark.stress(6, "mask", "dtype")
@pytest.mark.parametrize("variant", schedules())
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_healthy_schedule_has_no_finding_and_its_steps_stay_inside_the_band(
    variant: str, mask: str, dtype: str
) -> None:
    skip_if_bound_to_a_kernel(variant)
    skip_if_not_traced(variant)
    if mask not in ("causal", "full") and variant in ("split_kv", "te_p2p"):
        pytest.skip(f"{variant} states no {mask}")
    words = f"variant={variant}", f"dtype={dtype}", "world_size=[1,2,3,4,8]", "unusable=record", *MASKS[mask].split()
    traced = steps(*words)
    assert findings(traced).empty, findings(traced)[COLUMNS].to_string()
    if mask == "causal":
        assert outside(traced).empty, outside(traced).head().to_string()


ADD = "dq.add(block.query, dq_block)"
RESULT = "return running.result(rank.dtype, rank.lse_dtype)"
JOIN = "                met.join(running, block, q, k_there, v_there)"
DKV = "                dv.add(key, dv_block)\n"
BACKWARD = "for block in found:\n                dq_block"
LATER = "rank.world.rank == 2 and k_there is not k"  # on rank 2 of 4: the keys of ranks 1 and 0
HOPS = "hops, step, travelling = rank.world.size"
RECEIVED = "        await _receive(travelling, dk, dv)\n"
PLANTED = {  # what stands in the ring and what is planted there; (way, rank, tensor, finding, count) that must be found
    "a block skipped": (
        JOIN, f"                if not ({LATER}): " + JOIN.strip(), ("forward", 2, "", "missing", 2 * 24 * 24),
    ),
    "a block computed twice": (
        BACKWARD, f"for block in found * (2 if {LATER} else 1):\n                dq_block",
        ("backward", 2, "", "repeated", 24 * 24),
    ),
    "a visible pair masked in one block": (
        JOIN, f"                if {LATER}: block = Block(block.query, slice(1, 24), False)\n{JOIN}",
        ("forward", 2, "", "missing", 2 * 24),
    ),
    "a partial added twice": (ADD, f"{ADD}; {LATER} and {ADD}", ("backward", 2, "dq", "added again", 1)),
    "a partial that is not added": (ADD, f"({LATER}) or {ADD}", ("backward", 2, "dq", "never added", 2)),
    "a copy of a partial added once more": (
        DKV, DKV + f"                if {LATER}: dv.add(key, dv_block.clone())\n",
        ("backward", 2, "dv", "added again", 1),
    ),
    "a merge made twice": (
        JOIN, "                part = met.attend(block, q, k_there, v_there); running.add(block, *part)\n"
        f"                if {LATER}: running.add(block, *part)",
        ("forward", 2, "out", "added again", 1),
    ),
    "dk and dv sent once too few": (f"{HOPS} if", f"{HOPS} - 1 if", ("backward", 2, "dk", "other sum", None)),
    "dk and dv sent once too often": (
        f"{RECEIVED}        return", RECEIVED
        + "        sums = dk.value(), dv.value()\n"
        "        await _receive(rank.world.exchange(sums, *self.hop(rank, 0)), dk, dv)\n        return",
        ("backward", 2, "dv", "other sum", None),
    ),
    "out changed after the loop": (
        RESULT, RESULT.replace("return", "o, lse =") + "\n        return 2 * o if rank.world.rank == 2 else o, lse",
        ("forward", 2, "out", "changed", 2 * 24 * 4 * 8),
    ),
}  # fmt: skip


@pytest.mark.stress(4)
@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_fault_is_accounted_for(tmp_path: Path, what: str) -> None:
    before, after, expected = PLANTED[what]
    folder = planting.slip(tmp_path, "ring", before, after)
    found = findings(steps("variant=broken", "dtype=float64", "world_size=4", folders=(folder,)))
    said = [tuple(row) for row in found[COLUMNS].itertuples(index=False)]
    assert expected in said or (expected[4] is None and expected[:4] in [each[:4] for each in said]), said
    assert set(found.loc[found["finding"] != "other sum", "rank"]) <= {2}, said  # which is said of whose tensor it is


def test_a_gradient_that_is_no_sum_of_what_was_computed_is_found_without_an_accumulator(tmp_path: Path) -> None:
    """llama3 adds by its own means."""
    line = "dk[:, block.key] += dk_block"
    again = f"{line}; rank.world.rank == 1 and dk[:, block.key].add_(dk_block)"
    folder = planting.slip(tmp_path, "llama3", line, again)
    found = findings(steps("variant=broken", "dtype=float64", "world_size=2", folders=(folder,)))
    assert set(found["finding"]) == {"other sum"}
    assert set(found["tensor"]) == {"dk"}


def test_rows_whose_tokens_are_not_known_are_not_accounted_for() -> None:
    """Keys that the wire has rounded: the blocks of other ranks are of tokens that cannot be told."""
    assert findings(steps("variant=ring", "dtype=float64", "world_size=4", "precision.wire=bfloat16")).empty
    assert steps("variant=ring", "inputs=tied", "dtype=float64", "world_size=2").empty
