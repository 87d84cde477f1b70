"""Parts of a user's own, one Python file and one YAML each, in a folder that is to be given as --config-dir."""

from pathlib import Path
from textwrap import indent

from accuracy.core.paths import PACKAGE

HEAD = "import ctypes, os, random, signal, time\nimport torch\n"
RING = HEAD + "from accuracy.variant.ring import Ring\n\n\nclass Planted(Ring):\n{body}\n\n\nSCHEDULE = Planted()\n"
FORWARD = """
async def forward(self, rank, q, k, v):
    {statement}
    return await super().forward(rank, q, k, v)
"""
AFTERWARDS = """
async def {way}(self, rank, *tensors):
    q, {names} = tensors[0], *await super().{way}(rank, *tensors)
    {statement}
    return {names}
"""
NAMES = {"forward": "out, lse", "backward": "dq, dk, dv"}
DIES = "rank.world.rank == 1 and os.path.exists({0!r}) and (os.remove({0!r}), os.kill(os.getpid(), 9))"
SHARDING = {"zigzag": "zigzag", "striped": "striped"}
KNOBS = {"bpt": "query_chunk: 20\nkey_chunk: 36\n", "bpt_ring": "query_chunk: 20\nkey_chunk: 7\n",
         "llama3": "heads_stride: 2\n"}  # fmt: skip


def part(folder: Path, kind: str, name: str, code: str, config: str = "{}\n") -> Path:
    """Returns the folder."""
    (folder / kind).mkdir(parents=True, exist_ok=True)
    (folder / kind / f"{name}.py").write_text(code)
    (folder / kind / f"{name}.yaml").write_text(f"# @package {kind}.{name}\n# A part of a test\n{config}")
    return folder


def variant(folder: Path, name: str, code: str, sharding: str = "contiguous", knobs: str = "") -> Path:
    return part(folder, "variant", name, code, f"forward: {name}\nbackward: {name}\nsharding: {sharding}\n{knobs}")


def ring(folder: Path, name: str, methods: str) -> Path:
    return variant(folder, name, RING.format(body=indent(f"pass\n{methods}", "    ")))


def first(folder: Path, name: str, statement: str) -> Path:
    """The ring with a statement that each rank runs before its forward."""
    return ring(folder, name, FORWARD.format(statement=statement))


def last(folder: Path, name: str, way: str, statement: str) -> Path:
    """The ring with a statement that each rank runs after its forward, or its backward."""
    return ring(folder, name, AFTERWARDS.format(way=way, names=NAMES[way], statement=statement))


def dies_once(folder: Path, marker: Path) -> Path:
    """A ring that kills rank 1 as long as the marker exists, which it removes before."""
    marker.touch()
    return first(folder, "dies_once", DIES.format(str(marker)))


def slip(folder: Path, schedule: str, before: str, after: str) -> Path:
    """A variant `broken` whose schedule is a copy in which one piece of source is another."""
    source = (PACKAGE / "variant" / f"{schedule}.py").read_text()
    assert before in source, f"{schedule} no longer says {before!r}"
    code = HEAD + source.replace(before, after)
    return variant(folder, "broken", code, SHARDING.get(schedule, "contiguous"), KNOBS.get(schedule, ""))
