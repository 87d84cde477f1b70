"""What must hold without any test: the portable rules, which need no baseline; and what should be in a run and is not:
cases, cells of the baseline, seeds, and inputs that are still the baseline's.

An error is allowed to be a small multiple of what the same kernel, run once, makes on the same inputs. Rings of 2 to 64
ranks that round every block to 16 bits once more reach 1.27 over all ranks and 1.39 on one (reports/world_size_growth);
a wrong gradient or a dropped key costs hundreds. lse is kept in float32 and merged with every block, so its error grows
like a random walk, to 2.8 at 64 ranks; a dropped key of 1024 moves it 10^4. The bounds of a single rank and of maxima
are those of the AWS Neuron accuracy guide (worst L2 ratio below 3, worst L-infinity ratio below 5): loose, since a
maximum spreads by a tenth to a half over seeds.

A run has the baseline's first seeds, or fresh ones, and no fewer than SEEDS where the baseline has as many: a bad seed
that nobody plans is missed like one that is lost.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.number import count
from accuracy.gate.judge import Item
from accuracy.results import cell, table
from accuracy.results.cell import KEYS, SINGLE_DEVICE, Cell, Key
from accuracy.results.run_table import RunTable

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


SEEDS = 8  # of a run; fewer of a baseline that has as many must be asked for
SAME_INPUTS = 0.1  # of the reference's size: other code of the reference, or of 8 bits, moves it by far less
Cells = Mapping[Key, Cell]


def without_numbers(
    run: RunTable, baseline: RunTable | None, only_before: Sequence[Key], also: list[str], part: bool
) -> Iterator[Item]:
    """Planned cases that were lost, died or are unsupported, and cells that only the baseline has. part: cells of the
    baseline that this run did not plan are not missed."""
    names = {**(cell.case_names(baseline) if baseline else {}), **cell.case_names(run)}
    lost = set(run.planned).difference(run.results["case_id"])
    for case in run.planned:
        if case in lost:
            yield Item(names.get(case, f"case {case}"), "missing", "planned, and not in the table")
    for case, reason in cell.without_numbers(run, table.FAILED).items():
        yield Item(names[case], "broken", reason)
    yield from _unsupported(run, baseline, names)
    if baseline is not None and only_before:
        yield from _only_in_baseline(run, baseline, only_before, also, part)
    if not run.about.get("ended") and not lost:
        yield Item("the run", "missing", "did not record its end: it was interrupted; repeat its command")


def _unsupported(run: RunTable, baseline: RunTable | None, names: Mapping[str, str]) -> Iterable[Item]:
    """One item a setting, whatever its seeds; one that the baseline measured is missed."""
    before = set(baseline.planned).difference(cell.without_numbers(baseline, table.UNSUPPORTED)) if baseline else ()
    found = {}
    for case, reason in cell.without_numbers(run, table.UNSUPPORTED).items():
        lost = ("missing", f"the baseline has it, and now: {reason}")
        item = Item(names[case].rpartition(" seed ")[0], *(lost if case in before else ("unsupported", reason)))
        found[item.name, item.reason] = item
    return found.values()


def _only_in_baseline(
    run: RunTable, baseline: RunTable, keys: Sequence[Key], also: list[str], part: bool
) -> Iterator[Item]:
    """Cells of the baseline whose cases the run did not plan, or measured without that tensor."""
    planned = set(run.planned)
    present = set(run.results.loc[run.results["tensor"].notna(), "case_id"])
    rows = baseline.results[baseline.results["tensor"].notna()]
    cases = {key: set(ids) for key, ids in rows.groupby(list(KEYS), sort=False, dropna=False)["case_id"]}
    for key in keys:
        if cases[key] & present:
            yield Item(cell.named(key, also), "missing", "the baseline has this tensor, the run has none", key)
        elif cases[key] and not cases[key] & planned and not part:
            yield Item(cell.named(key, also), "missing", "the baseline has it, the run did not plan it", key)


def seeds_left_out(cells: Cells, baseline: Cells, second: Cells, also: list[str]) -> Iterator[Item]:
    """One item for each kind of gap, named after its first cell. second: of a second look."""
    gaps: dict[str, list[Key]] = {}
    for key, each in cells.items():
        if key in baseline and baseline[key].y and not each.nonfinite:
            ours = {*each.seeds, *(second[key].seeds if key in second else ())}
            theirs = baseline[key].seeds
            skipped = [seed for seed in theirs[: len(ours & {*theirs})] if seed not in ours]
            least = min(SEEDS, len(theirs))
            if skipped:
                gaps.setdefault(f"the run leaves out seed {skipped[0]} of the baseline", []).append(key)
            elif len(ours) < least:
                gaps.setdefault(f"the run has {count(len(ours), 'seed')}, and {least} are needed", []).append(key)
    for text, keys in gaps.items():
        others = f" (and {count(len(keys) - 1, 'further cell')})" if keys[1:] else ""
        yield Item(cell.named(keys[0], also), "missing", f"{text}{others}; measure it, or say --part")


def other_inputs(run: pd.DataFrame, baseline: pd.DataFrame, also: list[str]) -> Iterator[Item]:
    """A seed whose inputs are no longer the baseline's: on easier ones a worse kernel looks better. By the size of the
    reference, of tensors that are no small difference of large numbers."""
    by = [*KEYS, "seed"]
    new, old = (
        rows.loc[(rows["rank"] == table.ALL_RANKS) & rows["tensor"].isin(["out", "dv"]), [*by, "reference_rms"]]
        for rows in (run, baseline)
    )
    both = new.merge(old, on=by, suffixes=("", "_before"))
    sizes, before = both["reference_rms"], both["reference_rms_before"]
    differ = both[(sizes - before).abs() > SAME_INPUTS * np.maximum(sizes, before)]
    if len(differ):
        first = differ.iloc[0]
        others = f" (and of {count(len(differ) - 1, 'further row')})" if len(differ) > 1 else ""
        yield Item(
            cell.named(tuple(first[list(KEYS)]), also),
            "missing",
            f"the inputs of seed {first['seed']} are not the baseline's: the root mean square of the reference is"
            f" {first['reference_rms']:.3g} and was {first['reference_rms_before']:.3g}{others}; give other inputs a"
            " name or options of their own, or accept a new baseline",
        )


def copied_seeds(first: Cells, second: Cells, also: list[str]) -> Iterator[Item]:
    """A second look that has a seed of the first under another number."""
    for key, each in second.items():
        known = {numbers.tobytes() for numbers in (first[key].exact.values() if key in first else ())}
        for seed, numbers in each.exact.items():
            if numbers.tobytes() in known and (numbers[:, 0] > 0).any():
                text = f"seed {seed} of the second look has the numbers of a seed of the first, to the last bit"
                yield Item(cell.named(key, also), "missing", text)
                break
