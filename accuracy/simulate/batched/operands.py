"""What the kernel reads of all ranks' tensors in a call: where it lies, or that of several calls, copied side by side,
so that these are one: a block's partial and gradients depend on no other block, only merges and sums have an order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.masks import Block
from accuracy.simulate.batched import fold, listed
from accuracy.simulate.batched.fold import Call, Run, blamed, items
from accuracy.simulate.batched.listed import Computed, Lot, Side
from accuracy.variant.ring import COPIED_ELEMENTS
from accuracy.world.base import Tensors

Read = tuple[str, Tensor]
"""Of a tensor of all ranks, (W B, ...), `rows` or `keys`; `lse`: rows of (W B, H, S)."""
WORD = 16
"""Bytes that a GPU copies at once where a tensor's elements are as large."""


@dataclass(frozen=True)
class Operands:
    """batch: items a rank."""

    batch: int

    def of(self, call: Call, ranks: range, reads: Sequence[Read]) -> Iterator[Tensor]:
        """Yield for each tensor of `reads` the part that a call of these ranks computes with: its rows or its keys."""
        query, key = call.block.query, call.block.key
        for what, x in reads:
            mine = x[items(call.sources(ranks) if what == "keys" else ranks, self.batch)]
            yield mine[:, :, query] if what == "lse" else mine[:, key if what == "keys" else query]

    def ahead(
        self, calls: Sequence[Call], reads: Sequence[Read], compute: Callable[..., Sequence[Tensor]]
    ) -> list[Computed]:
        """What `compute` gives for a block and its operands, of several calls that the kernel takes at once, one call's
        items behind another's. On a GPU single calls are computed, too, so that few passes merge or sum all of them,
        until their results have as many elements as may be copied."""
        found: list[Computed] = []
        kept = 0
        _, largest = max(reads, key=lambda read: read[1].numel())
        for lot in _lots(calls, COPIED_ELEMENTS // largest[: self.batch, 0].numel()):
            if len(lot) > 1:
                with blamed(range(len(largest) // self.batch)):
                    found.append((lot, compute(lot[0].one, *self._gathered(lot, reads))))
            elif fold.on_gpu(largest) and max(largest.numel(), kept) <= COPIED_ELEMENTS:
                found.append((lot, self.alone(lot[0], reads, compute)))
                kept += sum(x.numel() for x in found[-1][1])
        return found

    def alone(self, call: Call, reads: Sequence[Read], compute: Callable[..., Sequence[Tensor]]) -> Sequence[Tensor]:
        """What `compute` gives for one call, in as many parts as it has."""
        parts = []
        for ranks in call.parts():
            with blamed(ranks):
                parts.append(compute(call.one, *self.of(call, ranks, reads)))
        return parts[0] if len(parts) == 1 else [torch.cat(same) for same in zip(*parts, strict=True)]

    def by_call(self, computed: Sequence[Computed]) -> dict[int, Tensors]:
        """What `ahead` gives, by id of the call."""
        found: dict[int, Tensors] = {}
        for lot, results in computed:
            sizes = [len(call.ranks) * self.batch for call in lot]
            found.update(zip(map(id, lot), zip(*(x.split(sizes) for x in results), strict=True), strict=True))
        return found

    def _gathered(self, lot: Lot, reads: Sequence[Read]) -> Iterator[Tensor]:
        for what, x in reads:
            rows = x.transpose(1, 2) if what == "lse" else in_words(x)
            side = Side(what == "keys", len(x) // self.batch, self.batch, rows.shape[1])
            found = listed.gathered(rows, lot, side)
            yield found.transpose(1, 2) if what == "lse" else found.view(x.dtype)


def in_words(x: Tensor) -> Tensor:
    """Its memory in words, where rows of D are made of whole ones: as many bytes are copied by fewer threads."""
    size = x.element_size()
    places = (x.storage_offset(), x.shape[-1], *x.stride()[:-1])
    whole = x.stride(-1) == 1 and all(place * size % WORD == 0 for place in places)
    return x.view(torch.complex128) if whole else x


def _lots(calls: Sequence[Call], rows: int) -> list[Lot]:
    """Calls of blocks of a shape that the kernel takes at once, of so many rows or keys at most."""
    found: dict[Block, list[list[Call]]] = {}
    left: dict[Block, int] = {}
    for call in calls:
        one = call.one
        if left.get(one, 0) < len(call.ranks):
            found.setdefault(one, []).append([])
            left[one] = min(call.wide, rows // max(one.query.stop, one.key.stop))
        found[one][-1].append(call)
        left[one] -= len(call.ranks)
    return [tuple(lot) for lots in found.values() for lot in lots]


def waves(steps: Sequence[Sequence[Run]], q: Tensor, k: Tensor) -> Iterator[list[Run]]:
    """The runs of consecutive steps whose calls of the kernel may be one: as many as memory allows; of one step where
    position is relevant. q, k: of one rank, for their shapes."""
    limit = COPIED_ELEMENTS if fold.position_is_irrelevant(q) else 0
    wave: list[Run] = []
    left = 0
    for runs in steps:
        copied = sum(_copied(run, q, k) for run in runs)
        if wave and copied > left:
            yield wave
            wave = []
        left = (left if wave else limit) - copied
        wave.extend(runs)
    if wave:
        yield wave


def _copied(run: Run, q: Tensor, k: Tensor) -> int:
    """Elements of rows or of keys, whichever are more, that copies for the blocks of a run have."""
    rows, keys = (
        sum(each.stop - each.start for each in side)
        for side in zip(*((block.query, block.key) for block in run.blocks), strict=True)
    )
    return len(run.ranks) * max(rows * q[:, 0].numel(), keys * k[:, 0].numel())
