"""A rank's partial in place of the final out or lse: returned, or handed to the backward."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from accuracy.explain.hypothesis.attention import Attention, Stage
from accuracy.explain.hypothesis.base import BACKWARD, Asked, Hypothesis, gradients_of, head_first, tensors_of


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Partials over one rank's keys only, and other rows' lse or out, in the forward and in the backward."""
    if asked.size < 2:
        return
    for word, counts in _partials(asked).items():
        yield from _of_keys(asked, word, asked.reference.but(counts=counts))
    for step in range(1, asked.size):
        yield from _of_rows(asked, f"the rank {step} behind", partial(torch.roll, shifts=step, dims=0))
    if asked.case.problem.queries % (2 * asked.size) == 0:
        halves: dict[str, Stage] = {
            "the other half of the shard": lambda x: x.roll(x.shape[2] // 2, 2),
            "the first half of the shard, for both": lambda x: torch.cat([x.chunk(2, dim=2)[0]] * 2, dim=2),
            "the second half of the shard, for both": lambda x: torch.cat([x.chunk(2, dim=2)[1]] * 2, dim=2),
        }
        for word, move in halves.items():
            yield from _of_rows(asked, word, move)


def _of_keys(asked: Asked, word: str, part: Attention) -> Iterator[Hypothesis]:
    """A partial as the result, and what the backward is given."""
    right, name = asked.reference, f"a partial: {word}"
    if asked.forward_wrong:
        every = tensors_of(part)
        yield Hypothesis(name, f"out and lse are the partial of {word}", every)
        yield Hypothesis(name, f"out is the partial of {word}", {"out": every["out"]})
        yield Hypothesis(name, f"lse is the partial of {word}", {"lse": every["lse"]})
    if set(asked.wrong) & set(BACKWARD):
        for what, pair in _saved(right, part.out, part.lse).items():
            cause = f"the backward is given the {what} of {word}, not of all keys"
            yield Hypothesis(f"a partial {what}: {word} (backward)", cause, gradients_of(right.but(saved=pair)))
        cause = f"the gradients are those of {word} alone"
        yield Hypothesis(f"gradients of a partial: {word}", cause, gradients_of(part))


def _of_rows(asked: Asked, whose: str, move: Stage) -> Iterator[Hypothesis]:
    """Another rank's, or half's, lse or out in the backward, and as a result."""
    right, on = asked.reference, head_first(asked.on_shards(move))
    out, lse = on(right.out), on(right.lse)
    if set(asked.wrong) & set(BACKWARD):
        for what, pair in _saved(right, out, lse).items():
            cause = f"the backward is given the {what} of {whose}"
            yield Hypothesis(f"{what} of {whose} (backward)", cause, gradients_of(right.but(saved=pair)))
    if "half" in whose:
        for name, moved in (("out", out), ("lse", lse)):
            yield Hypothesis(f"{name} of {whose}", f"{name} is that of {whose}", {name: moved.transpose(1, 2)})


def _saved(right: Attention, out: Tensor, lse: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    return {"lse": (right.out, lse), "out": (out, right.lse), "out and lse": (out, lse)}


def _partials(asked: Asked) -> dict[str, Tensor]:
    """Which keys each row counts, by what that is called; none under which a row has no key."""
    queries, keys = asked.owners
    right, size = asked.reference.counts, asked.size
    owners = {
        "its own rank": queries, "the rank before": (queries - 1) % size, "the rank after": (queries + 1) % size,
        "rank 0": queries * 0, "the last rank": queries * 0 + size - 1,
    }  # fmt: skip
    found = {}
    for word, owner in owners.items():
        same = keys[None] == owner[:, None]
        found[f"the keys of {word}"] = right * same
        found[f"all keys but those of {word}"] = right * ~same
    found = {word: counts for word, counts in found.items() if not torch.equal(counts, right)}
    found["the last hop's keys"] = _last_hop(asked, -1)
    found["the last hop's keys (towards rank r + 1)"] = _last_hop(asked, 1)
    return {word: counts for word, counts in found.items() if (counts != 0).any(-1).all()}


def _last_hop(asked: Asked, towards: int) -> Tensor:
    """Of each row, the keys of the rank that its ring visits last of those with keys that it sees."""
    queries, keys = asked.owners
    counts = torch.zeros_like(asked.reference.counts)
    for step in range(asked.size):
        source = (queries + towards * step) % asked.size
        block = asked.reference.counts * (keys[None] == source[:, None])
        has = (block != 0).any(-1, keepdim=True)
        counts = torch.where(has, block, counts)
    return counts
