"""Packed documents over ranks: which tokens a rank of a function holds, what it is told of them, and their exchange.

By document, as the rings of ring-flash-attn have them: each rank has a part of every document, as its sharding cuts
one, and the borders of these parts; or, as TransformerEngine has them, those of the whole documents, and of these
padded to what ranks can share. By slices, as its llama3 has them: rank r has slice r of W of the packed tokens,
the borders of the documents of its queries and of the keys that they see, and where these keys begin and end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.core.sharding import lengths_of, of_each, padded_length, parts_of
from accuracy.runtime.sharding import token_map

Tokens = list[list[int]]
"""For each rank the positions of the tokens that it holds, in its order."""


def by_document(lengths: Sequence[int], sharding: str, size: int) -> Tokens:
    """Return the tokens of ranks that have a part of every document."""
    found: Tokens = token_map(of_each(sharding, lengths), sum(lengths), size).tolist()
    return found


def uncut(lengths: Sequence[int], sharding: str, size: int, may_pad: bool = False) -> str | None:
    """Return why ranks cannot have a part of every document, or None."""
    if lengths_of(sharding):
        return f"has a part of each document on every rank, not sharding={sharding}: use sharding=contiguous"
    parts = parts_of(sharding, size)
    uneven = [] if may_pad else [length for length in lengths if length % parts]
    return f"cuts each document into {parts} parts: {uneven[0]} is no multiple of it" if uneven else None


@dataclass(frozen=True)
class Packed:
    """One rank's part of packed documents. have, wanted: by the variant's sharding, and as the function has them;
    words: what the function is told; of_keys: the same of keys, where these are packed otherwise."""

    have: Tokens
    wanted: Tokens
    group: dist.ProcessGroup
    words: dict[str, Any]
    of_keys: dict[str, Any]

    def moved(self, x: Tensor, back: bool = False) -> Tensor:
        """Return (B, S/W, ...) with the function's tokens for the variant's, or back; autograd follows."""
        way = (self.wanted, self.have) if back else (self.have, self.wanted)
        if self.have == self.wanted:
            return x
        flat: Tensor = Exchange.apply(x.flatten(0, 1)[None], *way, self.group)
        return flat[0].unflatten(0, x.shape[:2])


def packed(
    lengths: Sequence[int], q: Tensor, sharding: str, group: dist.ProcessGroup, causal: bool,
    by_slices: bool, whole: bool,
) -> Packed:  # fmt: skip
    """Return what a rank has of packed documents, of these lengths in each item of q (B, S/W, H, D). whole: it is told
    of all of them."""
    rank, size, batch = group.rank(), group.size(), q.shape[0]
    every = [*lengths] * batch
    borders = torch.tensor([0, *every]).cumsum(0).tolist()
    if not by_slices:  # its rows are of the tokens that it has
        longer = torch.tensor([0, *(padded_length(sharding, length, size) for length in every)]).cumsum(0).tolist()
        padded = _words(longer if whole else [border // size for border in longer], q)
        told = {"cu_seqlens_padded": padded["cu_seqlens"]}
        return Packed([], [], group, told | (_words(borders, q) if whole else padded), {})
    have = by_document([sum(lengths)] * batch, sharding, size)
    wanted = by_document([borders[-1]], "contiguous", size)
    begin, end = wanted[rank][0], wanted[rank][-1] + 1
    inside = [border for border in borders if begin < border < end]
    first = max(border for border in borders if border <= begin)
    last = end if causal else min(border for border in borders if border >= end)
    of_keys = _words([border - first for border in (first, *inside, last)], q)
    words = _words([border - begin for border in (begin, *inside, end)], q)
    return Packed(have, wanted, group, words | {"local_k_slice": slice(first, last)}, of_keys)


def _words(borders: Sequence[int], like: Tensor) -> dict[str, Any]:
    longest = max(end - begin for begin, end in pairwise(borders))
    return {"cu_seqlens": torch.tensor(borders, dtype=torch.int32, device=like.device), "max_seqlen": longest}


class Exchange(torch.autograd.Function):
    """Gives each rank other tokens than those of its shard (B, S/W, ...): for its tokens of `have` those of `wanted`.
    Gradients go the other way; nothing is added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, have: Tokens, wanted: Tokens, group: dist.ProcessGroup) -> Tensor:
        """See `exchanged`."""
        ctx.have, ctx.wanted, ctx.group = have, wanted, group
        return exchanged(x, have, wanted, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Send gradients back."""
        return exchanged(gradients[0], ctx.wanted, ctx.have, ctx.group), None, None, None


def exchanged(x: Tensor, have: Tokens, wanted: Tokens, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's tokens of `wanted`, out of x (B, S/W, ...), whose tokens on each rank are those of `have`."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in have]
    dist.all_gather(parts, x.contiguous(), group=group)
    gathered = torch.cat(parts, 1)
    place = torch.empty(gathered.shape[1], dtype=torch.int64)
    place[[token for each in have for token in each]] = torch.arange(len(place))
    return gathered[:, place[wanted[dist.get_rank(group)]].to(x.device)]
