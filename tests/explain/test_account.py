"""What a trace accounts for: every visible pair computed once, every add made once, the last state returned."""

from pathlib import Path

import pandas as pd
import pytest

from tests import planting
from tests.explain.test_trace import steps
from tests.variants import schedules, skip_if_bound_to_a_kernel, skip_if_not_traced

COLUMNS = ["way", "rank", "step", "tensor", "finding", "count"]


def findings(*overrides: str, folders: tuple[Path, ...] = ()) -> pd.DataFrame:
    found = steps(*overrides, folders=folders)
    assert len(found)
    return found.reindex(columns=[*found.columns, *set(COLUMNS) - set(found)]).dropna(subset="finding")


MASKS = {
    "causal": "problem.mask=causal", "full": "problem.mask=full", "window": "problem.window=10",
    "documents": "problem.documents=17+40+39", "dropout": "problem.dropout=0.3",
    "padding": "problem.padding=end problem.mask=full problem.seqlen=91",
}  # fmt: skip


@pytest.mark.stress(10, "mask", "dtype")
@pytest.mark.parametrize("variant", schedules())
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_healthy_schedule_has_no_finding(variant: str, mask: str, dtype: str) -> None:
    skip_if_bound_to_a_kernel(variant)
    skip_if_not_traced(variant)
    if mask not in ("causal", "full") and variant in ("split_kv", "te_p2p"):
        pytest.skip(f"{variant} states no {mask}")
    words = f"variant={variant}", f"dtype={dtype}", "world_size=[1,2,3,4,8]", "unusable=record", *MASKS[mask].split()
    found = findings(*words)
    assert found.empty, found[COLUMNS].to_string()


ADD = "dq.add(block.query, dq_block)"
RESULT = "return running.result(rank.dtype, rank.lse_dtype)"
JOIN = "                await met.bring(running, block, q, k_there, v_there)"
DKV = "                dv.add(key, dv_block)\n"
BACKWARD = "for block in found:\n                dq_block"
LATER = "rank.world.rank == 2 and k_there is not k"  # on rank 2 of 4: the keys of ranks 1 and 0
PLANTED = {  # what stands in the ring and what is planted there; (way, rank, tensor, finding, count) that must be found
    "a block skipped": (
        JOIN, f"                if not ({LATER}): " + JOIN.strip(),
        ("forward", 2, "", "missing", 2 * 24 * 24),
    ),
    "a block computed twice": (
        BACKWARD, f"for block in found * (2 if {LATER} else 1):\n                dq_block",
        ("backward", 2, "", "repeated", 24 * 24),
    ),
    "a visible pair masked in one block": (
        JOIN,
        f"                if {LATER}: block = Block(block.query, slice(1, 24), False)\n{JOIN}",
        ("forward", 2, "", "missing", 2 * 24),
    ),
    "a partial added twice": (
        ADD, f"{ADD}; {LATER} and {ADD}", ("backward", 2, "dq", "added again", 1),
    ),
    "a partial that is not added": (
        ADD, f"({LATER}) or {ADD}", ("backward", 2, "dq", "never added", 2),
    ),
    "a copy of a partial added once more": (
        DKV, DKV + f"                if {LATER}: dv.add(key, dv_block.clone())\n",
        ("backward", 2, "dv", "added again", 1),
    ),
    "a merge made twice": (
        JOIN, "                part = met.attend(block, q, k_there, v_there); running.add(block, *part)\n"
        f"                if {LATER}: running.add(block, *part)",
        ("forward", 2, "out", "added again", 1),
    ),
    "dk and dv sent once too few": (
        "hops, step, travelling = rank.world.size if", "hops, step, travelling = rank.world.size - 1 if",
        ("backward", 2, "dk", "other sum", None),
    ),
    "dk and dv sent once too often": (
        "        await _receive(travelling, dk, dv)\n        return",
        "        await _receive(travelling, dk, dv)\n"
        "        await _receive(rank.world.ring_shift((dk.value(), dv.value()), 1), dk, dv)\n        return",
        ("backward", 2, "dv", "other sum", None),
    ),
    "out changed after the loop": (
        RESULT, RESULT.replace("return", "o, lse =") + "\n        return 2 * o if rank.world.rank == 2 else o, lse",
        ("forward", 2, "out", "changed", 2 * 24 * 4 * 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_fault_is_accounted_for(tmp_path: Path, what: str) -> None:
    before, after, expected = PLANTED[what]
    folder = planting.slip(tmp_path, "ring", before, after)
    found = findings("variant=broken", "dtype=float64", "world_size=4", folders=(folder,))
    said = [tuple(row) for row in found[["way", "rank", "tensor", "finding", "count"]].itertuples(index=False)]
    assert expected in said or (expected[4] is None and expected[:4] in [each[:4] for each in said]), said
    assert set(found.loc[found["finding"] != "other sum", "rank"]) <= {2}, said  # which is said of whose tensor it is


def test_a_gradient_that_is_no_sum_of_what_was_computed_is_found_without_an_accumulator(
    tmp_path: Path,
) -> None:
    """llama3 adds by its own means."""
    line = "dk[:, block.key] += dk_block"
    folder = planting.slip(
        tmp_path, "llama3", line, f"{line}; rank.world.rank == 1 and dk[:, block.key].add_(dk_block)"
    )
    found = findings("variant=broken", "dtype=float64", "world_size=2", folders=(folder,))
    assert set(found["finding"]) == {"other sum"}
    assert set(found["tensor"]) == {"dk"}


def test_rows_whose_tokens_are_not_known_are_not_accounted_for() -> None:
    """Keys that the wire has rounded: the blocks of other ranks are of tokens that cannot be told."""
    assert findings("variant=ring", "dtype=float64", "world_size=4", "precision.wire=bfloat16").empty
    assert steps("variant=ring", "inputs=tied", "dtype=float64", "world_size=2").empty
