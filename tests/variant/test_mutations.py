"""The tests can fail: every planted slip in a schedule is seen in float64, where a right schedule is exact.

A mutation replaces one piece of a schedule's source; the broken copy runs as a variant of its own.
"""

from pathlib import Path

import pytest

import accuracy
from tests.measuring import measure

PACKAGE = Path(accuracy.__file__).parent

# schedule, what stands there, what a slip makes of it, tensors that must show it
MUTATIONS = [
    ("ring", "(rank, source, q.shape[1])", "(rank, source, q.shape[1]) * (source < rank.world.rank)", {"out", "dq"}),
    ("ring", "(rank, source, q.shape[1])", "(rank, max(0, source - 1), q.shape[1])", {"out", "dq", "dk", "dv"}),
    ("ring", "(rank, source, q.shape[1])", "(rank, source, q.shape[1] - 1)", {"out", "lse"}),
    ("ring", "- step * _distance(rank)", "+ step * _distance(rank)", {"out", "dk"}),
    ("ring", "dk.add(key, dk_block)", "dk.take(dk_block)", {"dk"}),
    ("ring", "total.take(received)", "total.add(slice(0, len(received[0])), received)", {"dk", "dv"}),
    ("ring", "zip((dk, dv), await", "zip((dk, dk), await", {"dk", "dv"}),
    ("ring", "dv.add(key, dv_block)", "dv.add(key, dk_block)", {"dv"}),
    ("ring", "dq.add(block.query, dq_block)", "dq.take(dq_block)", {"dq"}),
    ("ring", "(dk.value().to(wire), dv.value().to(wire))", "(dv.value().to(wire), dk.value().to(wire))",
     {"dk", "dv"}),
    ("ring", "add(found)", "add(found[1:])", {"dk", "dv"}),
    ("zigzag", "length // 2), slice(length // 2", "length // 2 - 1), slice(length // 2 - 1", {"out", "lse"}),
    ("zigzag", "Block(whole, front, causal=False)", "Block(whole, back, causal=False)", {"out", "dk", "dv"}),
    ("zigzag", "Block(back, whole, causal=False)", "Block(front, whole, causal=False)", {"out", "dq"}),
    ("zigzag", "Block(whole, whole, causal=True)", "Block(whole, whole, causal=False)", {"out", "lse"}),
    ("zigzag", "source < rank.world.rank", "source > rank.world.rank", {"out", "dq", "dk"}),
    ("striped", "source <= rank.world.rank", "source < rank.world.rank", {"out", "lse"}),
    ("striped", "slice(1, length), slice(0, length - 1)", "slice(0, length - 1), slice(0, length - 1)", {"out"}),
    ("striped", "slice(1, length), slice(0, length - 1)", "slice(1, length), slice(1, length)", {"out", "dk"}),
    ("llama3", "(0, total)", "(0, total - 1)", {"out", "lse"}),
    ("llama3", "(0, total)", "(1, total)", {"out", "lse"}),
    ("llama3", "torch.zeros(2,", "torch.ones(2,", {"dk", "dv"}),
    ("llama3", "sums[1, :, block.key] += dv_block", "sums[0, :, block.key] += dv_block", {"dk", "dv"}),
    ("llama3", "(head + stride) * share", "(head + 1) * share", {"out", "dq"}),
    ("llama3", "dk[:, :, group.kv], dv[:, :, group.kv] = mine",
     "dv[:, :, group.kv], dk[:, :, group.kv] = mine", {"dk"}),
    ("ulysses", "x.movedim(0, 2).flatten(2, 3)", "x.flip(0).movedim(0, 2).flatten(2, 3)", {"out", "dq"}),
    ("ulysses", "x.repeat_interleave(max(1, rank.world.size // x.shape[2]), dim=2)",
     "x.repeat(1, 1, max(1, rank.world.size // x.shape[2]), 1)", {"out", "dk"}),
    ("ulysses", "for other in others:", "for other in others[1:]:", {"dk", "dv"}),
    ("bpt", "min(begin + chunk, whole[1])", "min(begin + chunk, whole[1] - 1)", {"out", "lse"}),
    ("bpt", "chunks.key_chunk)", "chunks.key_chunk - 1)", set()),
]  # fmt: skip
SHARDING = {"zigzag": "zigzag", "striped": "striped"}
KNOBS = {"bpt": "query_chunk: 20\nkey_chunk: 36\n", "bpt_ring": "query_chunk: 20\nkey_chunk: 7\n",
         "llama3": "heads_stride: 2\n"}  # fmt: skip


def plant(folder: Path, schedule: str, before: str, after: str) -> None:
    """A variant `broken` whose schedule is a copy with one slip."""
    source = (PACKAGE / "variant" / f"{schedule}.py").read_text()
    assert before in source, f"{schedule} no longer says {before!r}"
    (folder / "variant").mkdir()
    (folder / "variant" / "broken.py").write_text(source.replace(before, after))
    sharding = SHARDING.get(schedule, "contiguous")
    (folder / "variant" / "broken.yaml").write_text(
        f"# @package variant.broken\n# A planted slip\nforward: broken\nbackward: broken\nsharding: {sharding}\n"
        + KNOBS.get(schedule, "")
    )


@pytest.mark.stress(10, "schedule")
@pytest.mark.parametrize(("schedule", "before", "after", "tensors"), MUTATIONS)
def test_a_slip_in_a_schedule_is_seen(tmp_path: Path, schedule: str, before: str, after: str, tensors: set) -> None:
    """Seen: an error above 1e-6 of the reference, where the healthy schedule is held to 1e-12; or a row that failed."""
    plant(tmp_path, schedule, before, after)
    size = 1 if schedule == "bpt" else 4
    results = measure("variant=broken", f"world_size={size}", "dtype=float64", folders=[tmp_path])
    if (results["status"] == "failed").all():
        return
    errors = results[results["rank"] == -1].set_index("tensor")["error_rel"]
    if not tensors:  # another chunk size is no slip: the answer is the same
        assert errors.max() < 1e-12
    for tensor in tensors:
        assert errors[tensor] > 1e-6, errors.to_dict()
