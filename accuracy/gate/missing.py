"""What should be in a run and is not: cases, cells of the baseline, seeds, and inputs that are still the baseline's.

A run has the baseline's first seeds, or fresh ones, and no fewer than SEEDS where the baseline has as many: a bad seed
that nobody plans is missed like one that is lost.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from accuracy.core.number import count
from accuracy.gate.judge import Item
from accuracy.results import cell, table
from accuracy.results.cell import KEYS, Cell, Key
from accuracy.results.run_table import RunTable

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
