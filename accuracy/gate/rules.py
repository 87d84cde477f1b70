"""What must hold on any machine, with no baseline: the portable rules.

An error is allowed to be a small multiple of what the same kernel, run once, makes on the same inputs. Rings of 2 to 64
ranks that round every block to 16 bits once more reach 1.27 over all ranks and 1.39 on one (reports/world_size_growth);
a wrong gradient or a dropped key costs hundreds. lse is kept in float32 and merged with every block, so its error grows
like a random walk, to 2.8 at 64 ranks; a dropped key of 1024 moves it 10^4. The bounds of a single rank and of maxima
are those of the AWS Neuron accuracy guide (worst L2 ratio below 3, worst L-infinity ratio below 5): loose, since a
maximum spreads by a tenth to a half over seeds.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from accuracy.core import fields
from accuracy.results.cell import KEYS, SINGLE_DEVICE, Cell, Key

ACCEPTED_GROWTH = 1.5  # of a value that the baseline was published with: the spread of maxima over seeds


@dataclass(frozen=True)
class Limits:
    """How many times single device's error is allowed: of all ranks, of the worst rank, of the largest element; of
    lse."""

    all_ranks: float = 1.5
    one_rank: float = 3.0
    largest: float = 5.0
    lse: float = 10.0

    def of(self, tensor: str, whole: bool) -> float:
        """The limit of a tensor's relative error, over all ranks or on one."""
        if tensor == "lse":
            return self.lse
        return self.all_ranks if whole else self.one_rank


class Broken(NamedTuple):
    """A rule that a cell breaks. label: `not finite` or `excess`; value: what broke it."""

    label: str
    rule: str
    value: float
    text: str


def broken(cell: Cell, limits: Limits = Limits(), alone: bool = False) -> list[Broken]:
    """The rules that the cell breaks; none is fine. The others are compared with the single-device kernel, or with what
    rounding makes of sums that cancel (see `accuracy.results.cell`). alone: the matrix has no single device."""
    if cell.nonfinite:
        return [Broken("not finite", "finite", cell.nonfinite, f"{cell.nonfinite} values are not finite")]
    if (ratios := cell.rules) is None:
        return []
    checks = []
    if cell.get("variant") != SINGLE_DEVICE:
        than = "times that of the kernel run once"
        all_ranks, one_rank = (limits.of(str(cell.get("tensor")), whole) for whole in (True, False))
        checks += [
            ("all ranks", ratios.all_ranks, all_ranks, "its error is", than),
            ("one rank", ratios.one_rank, one_rank, "on its worst rank and seed its error is", than),
            ("largest", ratios.largest, max(limits.largest, one_rank), "its largest error is", than),
        ]
    if ratios.conditioned or alone:
        bound = "condition number times unit roundoff" if ratios.conditioned else "unit roundoff"
        than = f"times the bound of roundings, a multiple of {bound}"
        checks.append(("band", ratios.band, 1.0, "its error is", than))
    return [
        Broken("excess", rule, value, f"{words} {value:.3g} {than} (allowed: {limit:g})")
        for rule, value, limit, words, than in checks
        if value > limit
    ]


def accepted(found: Broken, baseline: Cell | None, limits: Limits = Limits()) -> bool:
    """Whether the baseline was published with the same rule broken, and about as far."""
    if found.label != "excess" or baseline is None or not math.isfinite(found.value):
        return False
    before = [each.value for each in broken(baseline, limits, alone=True) if each.rule == found.rule]
    return bool(before) and found.value <= ACCEPTED_GROWTH * before[0]


def without_single_device(cells: Collection[Key]) -> set[Key]:
    """Cells whose kernel no single device of the matrix runs, in the same dtype: it hides in both sides of a ratio."""
    columns = [KEYS.index(name) for name in (*fields.names(fields.KERNEL), "dtype")]
    kernels = {key: tuple(key[column] for column in columns) for key in cells}
    known = {kernel for key, kernel in kernels.items() if key[KEYS.index("variant")] == SINGLE_DEVICE}
    return {key for key, kernel in kernels.items() if kernel not in known}


def used(cell: Cell, alone: bool) -> str:
    """By what the cell is judged without a baseline."""
    if cell.rules is not None and cell.rules.conditioned:
        return "condition number times unit roundoff"
    return "single device and, of Gaussian inputs, the rounding floor" if alone else "single device"
