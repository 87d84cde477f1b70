"""Another mask: none, off by one, aligned elsewhere, of another hop, without windows or documents, one key less."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from accuracy.core.case import Problem
from accuracy.explain.hypothesis.base import Asked, Hypothesis, altered, setting
from accuracy.reference.float64 import seen_keys

SWAPPED = "a query sees no key but its own, as in a function of (B, H, S, D) that is measured without layout=bhsd"


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Each mask that shows other pairs than the right one."""
    seen: list[Tensor] = [asked.reference.counts]
    for word, counts in _masks(asked):
        if any(torch.equal(counts, each) for each in seen) or counts.shape != seen[0].shape:
            continue
        seen.append(counts)
        yield from altered(asked, f"mask: {word}", word, setting(counts=counts))


def _masks(asked: Asked) -> Iterator[tuple[str, Tensor]]:
    problem, right, offset = asked.case.problem, asked.reference.counts, asked.causal_order
    queries, keys = asked.owners
    same = queries[:, None] == keys[None]
    yield from _other_problems(problem)
    if problem.causal:
        yield "a query does not see its own position", right * (offset != 0)
        yield "a query sees one key too far ahead", _also(right, offset == 1)
        yield "rows see the block of their own rank in full, not causally", _also(right, same)
        alone = "rows see no key of their own rank behind the diagonal" if asked.size > 1 else SWAPPED
        yield alone, right * (~same | (offset == 0))
        yield "the mask is anticausal", (offset >= 0).double()
        local = _local(asked.tokens)[:, None], _local(asked.keys)[None]
        by_place = local[1] <= local[0]
        yield "every block is causal by local positions", right * (same | by_place)
        yield "every block is causal by local positions, later ranks' too", by_place.double()
        yield (
            "a query sees all keys up to its local position",
            (torch.arange(problem.seqlen)[None] <= local[0]).double(),
        )
        yield "the causal mask goes by ranks", (keys[None] <= queries[:, None]).double()
    if asked.size > 1:
        yield from _of_hops(asked)
    local_key = _local(asked.keys)
    for word, place in (("first", 0), ("last", problem.seqlen // asked.size - 1)):
        hidden = (local_key == place)[None]
        yield f"the {word} key of every rank is never seen", right * ~hidden
        yield f"the {word} key of every other rank is never seen", right * ~(hidden & ~same)
        for rank in range(asked.size):
            mine = hidden & (keys == rank)[None]
            yield f"the {word} key of rank {rank} is never seen", right * ~mine
            yield f"the {word} key of rank {rank} is never seen by other ranks", right * ~(mine & ~same)


def _other_problems(problem: Problem) -> Iterator[tuple[str, Tensor]]:
    others: dict[str, Problem] = {}
    if problem.causal:
        others["there is no causal mask"] = replace(problem, mask="full")
        side = "bottom right" if problem.mask == "causal_top_left" else "top left"
        mask = "causal" if problem.mask == "causal_top_left" else "causal_top_left"
        others[f"the causal mask is aligned at the {side}"] = replace(problem, mask=mask)
    else:
        others["the mask is causal"] = replace(problem, mask="causal")
    if problem.window is not None:
        others["the window is ignored"] = replace(problem, window=None)
        for step in (-1, 1):
            if problem.window + step >= 0:
                word = f"the window is {problem.window + step} keys, not {problem.window}"
                others[word] = replace(problem, window=problem.window + step)
    if problem.documents:
        others["the borders of documents are ignored"] = replace(problem, documents=())
        lengths = problem.documents
        if len(lengths) > 1:
            others["the first border of documents is one token late"] = replace(
                problem, documents=(lengths[0] + 1, lengths[1] - 1, *lengths[2:])
            )
            others["the first border of documents is one token early"] = replace(
                problem, documents=(lengths[0] - 1, lengths[1] + 1, *lengths[2:])
            )
    key = torch.arange(problem.seqlen)
    for word, other in others.items():
        try:
            begin, end = seen_keys(other.queries, other.seqlen, **other.seen_by).T[..., None]
        except ValueError:  # some query sees no key
            continue
        yield word, ((key >= begin) & (key < end)).double()
    if problem.window is not None and not problem.causal:
        place = torch.arange(problem.queries)[:, None] + problem.query_offset
        yield "the window has no right side", ((key >= place - problem.window) & (key <= place)).double()


def _of_hops(asked: Asked) -> Iterator[tuple[str, Tensor]]:
    """Keys of one rank under the mask of another."""
    right, size = asked.reference.counts, asked.size
    ranks = torch.arange(size)
    orders = {
        f"keys of rank j have the mask of rank j + {step}": ((ranks + step) % size).expand(size, size)
        for step in range(1, size)
    }
    behind = "keys of the rank s hops behind have the mask of the rank s hops ahead"
    orders[behind] = (2 * ranks[:, None] - ranks) % size
    for word, mask_of in orders.items():
        counts = torch.zeros_like(right)
        for mine in range(size):
            rows = asked.tokens[mine][:, None]
            for source in range(size):
                counts[rows, asked.keys[source][None]] = right[rows, asked.keys[mask_of[mine, source]][None]]
        yield word, counts
    queries, keys = asked.owners
    other = queries[:, None] != keys[None]
    plain = right.bool().any(-1)
    if plain.all():
        blocks = torch.zeros(size, size, dtype=torch.bool)
        blocks[queries[:, None].expand_as(other)[right != 0], keys[None].expand_as(other)[right != 0]] = True
        yield "blocks of other ranks have no mask", torch.where(other, blocks[queries][:, keys].double(), right)


def _also(right: Tensor, more: Tensor) -> Tensor:
    return torch.maximum(right, more.double())


def _local(tokens: Tensor) -> Tensor:
    """The position of every token in its shard."""
    places = torch.empty(tokens.numel(), dtype=torch.int64)
    places[tokens] = torch.arange(tokens.shape[1])[None].expand_as(tokens)
    return places
