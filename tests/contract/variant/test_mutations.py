"""The tests can fail: every planted slip in a schedule is seen in float64, where a right schedule is exact.

A mutation replaces one piece of a schedule's source; the broken copy runs as a variant of its own.
"""

from pathlib import Path

import pytest

from tests import planting
from tests.measuring import measure

# schedule, what stands there, what a slip makes of it, tensors that must show it
MUTATIONS = [
    ("ring", "- step * distance(rank)", "+ step * distance(rank)", {"out", "dk"}),
    ("ring", "total.take(received)", "total.add(slice(0, len(received[0])), received)", {"dk", "dv"}),
    ("ring", "in found:", "in found[-1:]:", {"out", "dq"}),
    ("ring", "dq.add(block.query, dq_block)", "dq.take(dq_block)", {"dq"}),
    ("zigzag", "length // 2), slice(length // 2", "length // 2 - 1), slice(length // 2 - 1", {"out", "lse"}),
    ("striped", "source <= rank.world.rank", "source < rank.world.rank", {"out", "lse"}),
    ("llama3", "dv[:, block.key] += dv_block", "dk[:, block.key] += dv_block", {"dk", "dv"}),
    ("llama3", "dk[:, :, group.kv], dv[:, :, group.kv] = (x",
     "dv[:, :, group.kv], dk[:, :, group.kv] = (x", {"dk"}),
    ("ulysses", "x.movedim(0, 2).flatten(2, 3)", "x.flip(0).movedim(0, 2).flatten(2, 3)", {"out", "dq"}),
    ("ulysses", "x.repeat_interleave(max(1, rank.world.size // x.shape[2]), dim=2)",
     "x.repeat(1, 1, max(1, rank.world.size // x.shape[2]), 1)", {"out", "dk"}),
    ("bpt", "min(begin + chunk, whole[1])", "min(begin + chunk, whole[1] - 1)", {"out", "lse"}),
    ("bpt", "chunks.key_chunk)", "chunks.key_chunk - 1)", set()),
    ("cached", "seen = end if", "seen = end - 1 if", {"out"}),
    ("cached", "v[:, :seen]", "k[:, :seen]", {"out"}),
]  # fmt: skip


@pytest.mark.stress(9, "schedule")
@pytest.mark.parametrize(("schedule", "before", "after", "tensors"), MUTATIONS)
def test_a_slip_in_a_schedule_is_seen(tmp_path: Path, schedule: str, before: str, after: str, tensors: set) -> None:
    """Seen: an error above 1e-6 of the reference, where the healthy schedule is held to 1e-12; or a row that failed."""
    planting.slip(tmp_path, schedule, before, after)
    size = 1 if schedule in ("bpt", "cached") else 4
    few = ["problem.documents=10+50+36"] if "found" in before else []
    results = measure("variant=broken", f"world_size={size}", "dtype=float64", *few, folders=[tmp_path])
    if (results["status"] == "failed").all():
        return
    errors = results[results["rank"] == -1].set_index("tensor")["error_rel"]
    if not tensors:  # another chunk size is no slip: the answer is the same
        assert errors.max() < 1e-12
    for tensor in tensors:
        assert errors[tensor] > 1e-6, errors.to_dict()
