"""What the kernel reads of all ranks' tensors in a call: where it lies; repeated for a grid of blocks, once for all
steps where these repeat the same; or that of several steps, copied side by side, so that these are one call: a block's
partial and gradients depend on no other block, only merges and sums have an order."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter

import torch
from torch import Tensor

from accuracy.simulate.batched import fold
from accuracy.simulate.batched.fold import Call, Run
from accuracy.simulate.batched.key_group import KeyGroup, in_words
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
    ) -> list[tuple[list[Call], Sequence[Tensor]]]:
        """Those of several calls that the kernel takes at once, with what `compute` gives for a block and its operands,
        one call's items behind another's."""
        found = []
        words = [(make, x if make is KeyGroup.lse else in_words(x)) for make, x in reads]
        row = max(x[: self.batch, 0].numel() for make, x in reads if make is not KeyGroup.lse)
        for lot in _lots(calls, COPIED_ELEMENTS // row):
            copied = zip(*(self.of(call, call.ranks, words) for call in lot), strict=True)
            operands = [torch.cat(same).view(x.dtype) for same, (_, x) in zip(copied, reads, strict=True)]
            found.append((lot, compute(lot[0].group.one, *operands)))
        return found

    def by_call(self, lots: Sequence[tuple[list[Call], Sequence[Tensor]]]) -> dict[int, Tensors]:
        """What `ahead` gives, by id of the call."""
        found: dict[int, Tensors] = {}
        for lot, results in lots:
            sizes = [len(call.ranks) * self.batch for call in lot]
            found.update(zip(map(id, lot), zip(*(x.split(sizes) for x in results), strict=True), strict=True))
        return found

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


def _lots(calls: Sequence[Call], rows: int) -> list[list[Call]]:
    """Calls of blocks of a shape that the kernel takes at once, of so many rows or keys at most. A grid's are none:
    they are many blocks already."""
    found: dict[Hashable, list[list[Call]]] = {}
    left: dict[Hashable, int] = {}
    for call in calls:
        key = call.group.shape
        if call.group.blocks > 1 or left.get(key, 0) < len(call.ranks):
            found.setdefault(key, []).append([])
            one = call.group.one
            left[key] = min(call.wide, rows // max(one.query.stop, one.key.stop))
        found[key][-1].append(call)
        left[key] -= len(call.ranks)
    return [lot for lots in found.values() for lot in lots if len(lot) > 1]


def in_order(calls: Sequence[Call], lots: Sequence[Sequence[Call]]) -> list[int]:
    """The lots in an order in which each rank's calls, and each source's, come as they do one by one; none where no
    order does that, where a lot has several groups, or where calls are in no lot."""
    number = {id(call): place for place, lot in enumerate(lots) for call in lot}
    alike = all(call.group.key == lot[0].group.key for lot in lots for call in lot)
    if not alike or any(id(call) not in number for call in calls):
        return []
    before: dict[int, set[int]] = {place: set() for place in range(len(lots))}
    last: dict[tuple[str, int], int] = {}
    for call in calls:
        place, both = number[id(call)], (("rank", call.ranks), ("source", call.sources(call.ranks)))
        for whose in ((name, rank) for name, ranks in both for rank in ranks):
            if last.get(whose, place) != place:
                before[place].add(last[whose])
            last[whose] = place
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError:
        return []


@lru_cache(maxsize=256)
def places(parts: tuple[range, ...], size: int, batch: int, device: torch.device) -> Tensor:
    """Where the items of each of `size` ranks are that several calls have one behind another, of these ranks each:
    (W B, n), int32, -1 behind them."""
    found: list[list[int]] = [[] for _ in range(size)]
    begin = 0
    for part in parts:
        for rank in part:
            found[rank].append(begin + rank - part.start)
        begin += len(part)
    most = max(map(len, found))
    rows = [[each * batch + item for each in of] + [-1] * (most - len(of)) for of in found for item in range(batch)]
    return torch.tensor(rows, dtype=torch.int32, device=device)


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
