"""What the kernel reads of all ranks' tensors in a call: where it lies; repeated for a grid of blocks, once for all
steps where these repeat the same; or that of several steps, copied side by side, so that these are one call: a block's
partial and gradients depend on no other block, only merges and sums have an order."""

from collections.abc import Callable, Hashable, Iterator, Sequence

import torch
from torch import Tensor

from accuracy.simulate.batched import fold, listed
from accuracy.simulate.batched.fold import Call, Run, blamed
from accuracy.simulate.batched.key_group import KeyGroup, in_words
from accuracy.simulate.batched.listed import Computed, Lot, Side
from accuracy.variant.ring import COPIED_ELEMENTS
from accuracy.world.base import Tensors

Read = tuple[Callable[[KeyGroup, Tensor], Tensor], Tensor]
"""`KeyGroup.rows`, `keys` or `lse`, and a tensor of all ranks, (W B, ...)."""


class Operands:
    """batch: items a rank. Whoever calls keeps the tensors: copies are known by their ids."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self._copies: dict[Hashable, Tensor] = {}

    def of(self, call: Call, ranks: range, reads: Sequence[Read]) -> list[Tensor]:
        """What some ranks of a call read, a block an item."""
        sources = call.sources(ranks)
        return [self._part(make, call.group, x, sources if make is KeyGroup.keys else ranks) for make, x in reads]

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
                    found.append((lot, compute(lot[0].group.one, *self._gathered(lot, reads))))
            elif fold.on_gpu(largest) and max(largest.numel(), kept) <= COPIED_ELEMENTS:
                found.append((lot, self.alone(lot[0], reads, compute)))
                kept += sum(x.numel() for x in found[-1][1])
        return found

    def alone(self, call: Call, reads: Sequence[Read], compute: Callable[..., Sequence[Tensor]]) -> Sequence[Tensor]:
        """What `compute` gives for one call, in as many parts as it has."""
        parts = []
        for ranks in call.parts():
            with blamed(ranks):
                parts.append(compute(call.group.one, *self.of(call, ranks, reads)))
        return parts[0] if len(parts) == 1 else [torch.cat(same) for same in zip(*parts, strict=True)]

    def by_call(self, computed: Sequence[Computed]) -> dict[int, Tensors]:
        """What `ahead` gives, by id of the call."""
        found: dict[int, Tensors] = {}
        for lot, results in computed:
            sizes = [len(call.ranks) * self.batch * call.group.blocks for call in lot]
            found.update(zip(map(id, lot), zip(*(x.split(sizes) for x in results), strict=True), strict=True))
        return found

    def _gathered(self, lot: Lot, reads: Sequence[Read]) -> Iterator[Tensor]:
        for make, x in reads:
            rows = x.transpose(1, 2) if make is KeyGroup.lse else in_words(x)
            side = Side(make is KeyGroup.keys, len(x) // self.batch, self.batch, rows.shape[1])
            found = listed.gathered(rows, lot, side)
            yield found.transpose(1, 2) if make is KeyGroup.lse else found.view(x.dtype)

    def _part(self, make: Callable[[KeyGroup, Tensor], Tensor], group: KeyGroup, x: Tensor, ranks: range) -> Tensor:
        items = slice(ranks.start * self.batch, ranks.stop * self.batch)
        if group.blocks == 1:
            return make(group, x[items])
        name, most = (make, id(x), group.key), 2 * (items.stop - items.start) >= len(x)
        if name not in self._copies and most and x.numel() * max(group.count, group.across) <= COPIED_ELEMENTS:
            self._copies[name] = make(group, x)
        if name not in self._copies:
            return make(group, x[items])
        return self._copies[name][items.start * group.blocks : items.stop * group.blocks]


def _lots(calls: Sequence[Call], rows: int) -> list[Lot]:
    """Calls of blocks of a shape that the kernel takes at once, of so many rows or keys at most."""
    found: dict[Hashable, list[list[Call]]] = {}
    left: dict[Hashable, int] = {}
    for call in calls:
        key, blocks = call.group.shape, len(call.ranks) * call.group.blocks
        if left.get(key, 0) < blocks:
            found.setdefault(key, []).append([])
            one = call.group.one
            left[key] = min(call.wide * call.group.blocks, rows // max(one.query.stop, one.key.stop))
        found[key][-1].append(call)
        left[key] -= blocks
    return [tuple(lot) for lots in found.values() for lot in lots]


def waves(steps: Sequence[Sequence[Run]], q: Tensor, k: Tensor) -> Iterator[list[Run]]:
    """The runs of consecutive steps whose calls of the kernel may be one: as many as memory allows; of one step where
    position is relevant. q, k: of one rank, for their shapes."""
    limit = COPIED_ELEMENTS // max(q.numel(), k.numel()) if fold.position_is_irrelevant(q) else 0
    wave: list[Run] = []
    left = 0
    for runs in steps:
        if wave and sum(map(_copies, runs)) > left:
            yield wave
            wave = []
        left = (left if wave else limit) - sum(map(_copies, runs))
        wave.extend(runs)
    if wave:
        yield wave


def _copies(run: Run) -> int:
    """Of a rank's rows or keys, at most, for the blocks of a run."""
    each_rank = max(sum(group.count for group in run.groups), sum(group.across for group in run.groups))
    return len(run.ranks) * each_rank
