"""`Llama3.forward` for all ranks of a simulated world at once: every bit of theirs, each gather made and read once. A
rank's rows see more keys than those of the ranks before it, so each is a kernel call as before; what is the same for
all, keys and values in sequence, is not repeated."""

from collections.abc import Sequence

import torch

from accuracy.simulate.batched.fold import at_every_place
from accuracy.simulate.batched.ring import blamed
from accuracy.variant import llama3
from accuracy.variant.base import Rank
from accuracy.world.base import Results, Tensors


def forward(rank: Rank, shards: Sequence[Tensors]) -> list[Results]:
    """`Llama3.forward` on q, k, v of every rank: out, lse of each. rank: any of them, for what all share. Raises
    RankFailed with the rank whose call raised."""
    ranks = at_every_place(rank, len(shards))
    queries, *kv = zip(*shards, strict=True)
    found = [llama3.unfilled(rank, q) for q in queries]
    for group in llama3.head_groups(rank, queries[0].shape[2], kv[0][0].shape[2]):
        gathered = tuple(torch.stack([llama3.on_the_wire(rank, x, group) for x in same]) for same in kv)
        everything = llama3.in_sequence(rank, gathered)
        for number, (mine, q, outs) in enumerate(zip(ranks, queries, found, strict=True)):
            with blamed(range(number, number + 1)):
                llama3.attend(mine, everything, group, q, *outs)
    return list(found)
