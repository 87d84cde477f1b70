"""Which rows of all ranks' tensors several kernel calls read and give, as lists: one gather makes their operands, one
pass merges their partials, one sums their gradients. Every row's blocks come in the order of the calls."""

from collections.abc import Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from accuracy.kernel.block.running_state import RunningState
from accuracy.kernel.triton import available
from accuracy.simulate.batched import fold
from accuracy.simulate.batched.fold import Call, RankStates, memory, value
from accuracy.variant.join import Accumulator, Running

Numbers = npt.NDArray[np.int64]
Lot = tuple[Call, ...]
"""Calls of blocks of a shape, that are one call of the kernel: an item of each block, call after call."""
Computed = tuple[Lot, Sequence[Tensor]]
"""With what the kernel gives."""


class Side(NamedTuple):
    """Rows (keys=False) or keys of `size` ranks, `length` of each, in a batch of `batch` items a rank. grain: what is
    known of them changes at multiples of it."""

    keys: bool
    size: int
    batch: int
    length: int
    grain: int = 0

    def starts(self, lot: Lot) -> Numbers:
        """Of each block: item of all ranks, its first row, its rows: (N, 3)."""
        found = []
        for call in lot:
            ranks = call.sources(call.ranks) if self.keys else call.ranks
            rows = call.block.key if self.keys else call.block.query
            items = np.arange(ranks.start * self.batch, ranks.stop * self.batch)
            found.append(np.stack(np.broadcast_arrays(items, rows.start, rows.stop - rows.start), axis=1))
        return np.concatenate(found)

    def unit(self, calls: Lot) -> int:
        """Rows that are always together."""
        return gcd(self.length, self.grain, *np.unique(self.starts(calls)[:, 1:]).tolist())

    def units(self, lot: Lot, unit: int) -> Numbers:
        """Where each unit of the lot's blocks is, one behind another, among those of all ranks."""
        item, begin, rows = self.starts(lot).T
        first: Numbers = (item * self.length + begin) // unit
        return (first[:, None] + np.arange(rows[0] // unit)).ravel()


@lru_cache(maxsize=256)
def index(lot: Lot, side: Side, device: torch.device) -> tuple[Tensor, int]:
    """`Side.units`, int32, and the unit."""
    unit = side.unit(lot)
    return _on(device, side.units(lot, unit)), unit


@lru_cache(maxsize=256)
def places(lot: Lot, side: Side, device: torch.device) -> tuple[Tensor, int]:
    """The inverse: for each unit of all ranks the numbers of the lot's units that lie on it, in the order of the calls:
    (units, n), int32, -1 behind them."""
    unit = side.unit(lot)
    there = side.units(lot, unit)
    in_turn = np.argsort(there, kind="stable")
    counts = np.bincount(there, minlength=side.size * side.batch * side.length // unit)
    turn = np.arange(len(there)) - np.repeat(np.cumsum(counts) - counts, counts)
    found = np.full((len(counts), counts.max()), -1)
    found[there[in_turn], turn] = in_turn
    return _on(device, found), unit


@lru_cache(maxsize=256)
def in_order(calls: Lot, lots: tuple[Lot, ...], side: Side) -> tuple[int, ...] | None:
    """The lots in an order in which each row's calls come as they do one by one; None where no order does that, or
    calls are in no lot."""
    number = {call: place for place, lot in enumerate(lots) for call in lot}
    if len(number) < len(calls):
        return None
    if len(lots) < 2:
        return tuple(range(len(lots)))
    unit = side.unit(calls)
    before: dict[int, set[int]] = {place: set() for place in range(len(lots))}
    last = np.full(side.size * side.batch * side.length // unit, -1)
    for call in calls:
        there, place = side.units((call,), unit), number[call]
        before[place].update({*last[there].tolist()} - {place, -1})
        last[there] = place
    try:
        return tuple(TopologicalSorter(before).static_order())
    except CycleError:
        return None


@lru_cache(maxsize=256)
def grain(progress: tuple[bytes, ...]) -> int:
    """Of the rows of ranks where `progress`, whether each of a rank's rows has been reached, changes."""
    return gcd(*(1 + np.flatnonzero(np.diff(_rows(progress)).any(axis=0))).tolist())


@lru_cache(maxsize=256)
def begun(progress: tuple[bytes, ...], batch: int, unit: int, device: torch.device) -> Tensor:
    """Whether each unit of all ranks has been reached, int32; progress: as of `grain`."""
    return _on(device, np.repeat(_rows(progress)[:, ::unit], batch, axis=0).ravel())


@lru_cache(maxsize=256)
def reached(progress: tuple[bytes, ...], lot: Lot) -> tuple[bytes, ...]:
    """The progress of the ranks after a lot."""
    found = [bytearray(of) for of in progress]
    for call in lot:
        rows = call.block.query
        for rank in call.ranks:
            found[rank][rows] = b"\1" * (rows.stop - rows.start)
    return tuple(map(bytes, found))


def _rows(progress: tuple[bytes, ...]) -> Numbers:
    """(ranks, rows)"""
    return np.stack([np.frombuffer(of, np.int8) for of in progress]).astype(np.int64)


def _on(device: torch.device, numbers: Numbers) -> Tensor:
    return torch.tensor(numbers.astype(np.int32), device=device)


def gathered(x: Tensor, lot: Lot, side: Side) -> Tensor:
    """x (W B, S, ...) -> (N, S', ...), the rows of each block of the lot."""
    where, unit = index(lot, side, x.device)
    blocks = x.reshape(-1, unit, *x.shape[2:]).index_select(0, where)
    one = lot[0].one
    return blocks.view(-1, (one.key if side.keys else one.query).stop, *x.shape[2:])


def merge(partials: RankStates[Running | RunningState], calls: Lot, computed: Sequence[Computed]) -> bool:
    """Bring the partials of all calls into those of the ranks, a lot in one pass. False: nothing is merged."""
    whole = partials.whole
    if isinstance(whole, RunningState):
        return False
    kernel = available.one_pass() if whole.formula == "sigmoid" and fold.on_gpu(whole.out) else None
    if kernel is None:
        return False
    side = Side(False, len(partials.each), partials.batch, whole.out.shape[1])
    order = in_order(calls, tuple(lot for lot, _ in computed), side)
    if order is None or not all(kernel.merges(whole.out, whole.lse, *both) for _, both in computed):
        return False
    for lot, (outs, lses) in (computed[place] for place in order):
        progress = tuple(partials.each)
        listed, unit = places(lot, side._replace(grain=grain(progress)), outs.device)
        seen = begun(progress, side.batch, unit, outs.device)
        state = _cut(whole.out, unit), _cut(whole.lse, unit)
        kernel.merge_listed(*state, _cut(outs.contiguous(), unit), lses, listed, seen)
        partials.each[:] = reached(progress, lot)
    return True


def add(sums: Sequence[RankStates[Accumulator]], calls: Lot, computed: Sequence[Computed]) -> bool:
    """Add all gradients to dq, dk, dv of the ranks, a lot's of each in one pass. False: nothing is added."""
    kernel = available.one_pass() if fold.on_gpu(sums[0].whole.like) else None
    if kernel is None or not calls:
        return False
    lots, work = tuple(lot for lot, _ in computed), []
    for number, total in enumerate(sums):
        side = Side(number > 0, len(total.each), total.batch, total.whole.like.shape[1])
        order = in_order(calls, lots, side)
        left = {rank for rank, begun in enumerate(total.each) if not begun}
        if order is None or not left <= _begun_in_part(calls, side):
            return False
        work += [(total, side, lots[place], computed[place][1][number]) for place in order]
    if not all(kernel.adds(memory(total), x) for total, _, _, x in work):
        return False
    for total, side, lot, blocks in work:
        listed, unit = places(lot, side, blocks.device)
        kernel.add_listed(_cut(value(total), unit), _cut(blocks.contiguous(), unit), listed)
    return True


@lru_cache(maxsize=256)
def _begun_in_part(calls: Lot, side: Side) -> frozenset[int]:
    """The ranks with a block; none where a block has all rows: a sum begins with that one as it is, where -0 stays
    -0, and with zeros for any other."""
    item, _, rows = side.starts(calls).T
    return frozenset((item // side.batch).tolist() if (rows < side.length).all() else ())


def _cut(x: Tensor, unit: int) -> Tensor:
    """(N, S, ...) -> (units, unit, ...)"""
    return x.view(-1, unit, *x.shape[2:])
