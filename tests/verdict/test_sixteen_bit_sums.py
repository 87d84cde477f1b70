"""What TransformerEngine's ring keeps in 16 bits is called rounding that grows, not a bug; a fault in it is one."""

from pathlib import Path

from accuracy.results.table import RESULTS_SCHEMA
from accuracy.verdict.facts import Facts
from accuracy.verdict.label import EXCESS_ROUNDING, LOGIC
from tests import planting
from tests.measuring import measure
from tests.verdict.synthetic import facts_of

SHAPE = ("problem.seqlen=256", "problem.heads=2", "problem.head_dim=16", "problem.batch=1", "kernel=eager",
         "dtype=[bfloat16,float32]")  # fmt: skip
RIGHT = "zigzag.blocks,"
TO_THE_FRONT = (  # keys of later ranks are merged into the front half of the queries, not the back
    "lambda rank, source, length: [__import__('dataclasses').replace(block, query=slice(0, length // 2))"
    " if source > rank.world.rank else block for block in zigzag.blocks(rank, source, length)],"
)


def diagnosed(*words: str, folders: tuple[Path, ...] = ()) -> Facts:
    results = measure(*SHAPE, *words, folders=folders).reindex(columns=RESULTS_SCHEMA.names)
    assert set(results["status"]) == {"ok"}
    return facts_of(results)


def test_a_ring_that_keeps_16_bits_rounds_more_and_grows_and_is_no_bug() -> None:
    found = diagnosed("variant=te_p2p", "world_size=[2,4,8,16]")
    assert (found.label, found.is_bug) == (EXCESS_ROUNDING, False)
    assert found.dtypes == ("bfloat16",)
    assert "out" in found.tensors
    assert found.growth["out"].low > 0


def test_a_fault_in_it_is_a_bug(tmp_path: Path) -> None:
    planting.slip(tmp_path, "te_p2p", RIGHT, TO_THE_FRONT)
    found = diagnosed("variant=broken", "variant.broken.sharding=zigzag", "world_size=[2,4]", folders=(tmp_path,))
    assert (found.label, found.is_bug) == (LOGIC, True)
    assert "out" in found.tensors
