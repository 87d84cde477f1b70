"""How many bytes does a rank send, and in how many messages? Counted in the simulated world, in bfloat16.

    python -m experiments.remedies.bytes_sent FOLDER

8 key/value heads of 64. Bytes are in units of a rank's own k and v. A gather sends what NCCL's ring does, a rank's part
W - 1 times; a reduce-scatter and an all-to-all (W - 1) / W of what they are given. `gathered`: the share of all keys
and values that a rank holds at a time, two groups of heads (one arrives while the other is used).
Written is FOLDER/bytes.csv.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from accuracy.config.compose import compose
from accuracy.core.case import Case
from accuracy.execute.plan import plan
from accuracy.execute.settle import read_settled
from accuracy.simulate.program import Work, build_kernel
from accuracy.world import simulated
from accuracy.world.base import Results, Tensors
from accuracy.world.simulated import SimulatedWorld, Transfer

SIZES, TOKENS, HEADS, DIM = (2, 4, 8, 64), 16, 8, 64
VARIANTS = ("ring", "zigzag", "llama3", "llama3_ring", "ulysses")
STRIDES = {"llama3": (1, 8), "llama3_ring": (1, 8)}


@dataclass
class Sent:
    """By one rank."""

    size: int
    messages: int = 0
    bytes: float = 0.0

    def add(self, tensors: Sequence[Tensor], times: float) -> None:
        """A message of some tensors, each sent so many times."""
        self.messages += 1
        self.bytes += times * sum(x.nbytes for x in tensors)


@dataclass
class CountingWorld(SimulatedWorld):
    """A simulated rank that counts what it sends."""

    sent: Sent = field(default_factory=lambda: Sent(0))

    def exchange(self, tensors: Sequence[Tensor], to: int, source: int) -> Transfer:
        """See `World.exchange`."""
        self.sent.add(tensors, 1)
        return super().exchange(tensors, to, source)

    def all_gather(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.all_gather`."""
        self.sent.add(tensors, self.size - 1)
        return super().all_gather(tensors)

    def all_to_all(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.all_to_all`."""
        self.sent.add(tensors, (self.size - 1) / self.size)
        return super().all_to_all(tensors)

    def reduce_scatter(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.reduce_scatter`."""
        self.sent.add(tensors, (self.size - 1) / self.size)
        return super().reduce_scatter(tensors)


def counted(case: Case, shards: list[Tensors]) -> dict[str, Sent]:
    """Of rank 0, forward and backward."""
    work = Work(case, build_kernel(case), shards, batched=False)
    found = {way: Sent(case.world_size) for way in ("forward", "backward")}
    kept: dict[int, Results] = {}

    async def forward(world: SimulatedWorld) -> Results:
        kept[world.rank] = await work.forward(world)
        return kept[world.rank]

    async def backward(world: SimulatedWorld) -> Results:
        return await work.backward(world, kept[world.rank])

    for way, program in (("forward", forward), ("backward", backward)):
        others = Sent(case.world_size)
        simulated.SimulatedWorld = lambda rank, size, mail, way=way, others=others: CountingWorld(  # type: ignore[misc]
            rank, size, mail, sent=found[way] if rank == 0 else others
        )
        simulated.run(program, case.world_size)
    return found


def rows() -> Iterator[dict[str, object]]:
    for size in SIZES:
        for variant in VARIANTS:
            for stride in STRIDES.get(variant, (0,)):
                words = [f"variant.{variant}.heads_stride={stride}"] if stride else []
                if variant == "ulysses" and size > HEADS:
                    continue
                length = TOKENS * size
                problem = [f"problem.seqlen={length}", f"problem.heads={HEADS}", f"problem.heads_kv={HEADS}"]
                config = compose(
                    f"variant={variant}", "kernel=eager", "dtype=bfloat16", f"world_size={size}", "device=cpu",
                    "seed=0", f"problem.head_dim={DIM}", *problem, *words,
                )  # fmt: skip
                (case,) = [each.case for each in plan(read_settled(config), free_bytes=None)]
                shards = [
                    tuple(torch.randn(1, TOKENS, HEADS, DIM, dtype=torch.bfloat16) for _ in range(4))
                    for _ in range(size)
                ]
                own = 2 * shards[0][1].nbytes
                for way, sent in counted(case, shards).items():
                    gathered = 2 * stride / HEADS if variant == "llama3" or (stride and way == "forward") else 0
                    yield {
                        "variant": variant, "heads_stride": stride or None, "world_size": size, "way": way,
                        "messages": sent.messages, "times_own_kv": sent.bytes / own, "gathered": min(1, gathered),
                    }  # fmt: skip


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame(rows())
    table.to_csv(folder / "bytes.csv", index=False, float_format="%.6g")
    print(table.to_string())
