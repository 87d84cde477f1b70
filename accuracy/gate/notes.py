"""What must a reader of the decision know beside its items? One sentence each."""

import math
from collections.abc import Iterable, Sequence

from accuracy.core.number import count
from accuracy.gate.fingerprint import Difference
from accuracy.gate.item import Item, percent
from accuracy.results.policy import RISE
from accuracy.results.run_table import RunTable


def notes(
    run: RunTable,
    baseline: RunTable | None,
    items: Sequence[Item],
    hard: Sequence[Difference],
    soft: Sequence[Difference],
) -> list[str]:
    """hard, soft: how the baseline's fingerprint differs."""
    return [
        *_of_baseline(baseline, hard, soft),
        *_of_items(run, items),
        *_of_power(items),
        *([] if run.results["single_device_max"].notna().any() else [NO_LARGEST]),
    ]


NO_LARGEST = "the table has no single_device_max: the rule of the largest error was not applied"


def _of_baseline(baseline: RunTable | None, hard: Iterable[Difference], soft: Iterable[Difference]) -> list[str]:
    if baseline is None:
        return ["no baseline was given: the portable rules decide alone"]
    apart, warned = ("; ".join(str(each) for each in found) for found in (hard, soft))
    if apart:
        return [f"the baseline is not comparable, the portable rules decide alone: {apart}"]
    return [f"warning, measured in another environment: {warned}"] if warned else []


def _of_items(run: RunTable, items: Sequence[Item]) -> list[str]:
    labels = {item.label for item in items}
    compared = any(item.baseline is not None for item in items)
    new = sum(item.label == "new" for item in items) if compared else 0
    found = []
    if new:
        found.append(f"{count(new, 'cell')} not in the baseline: the portable rules alone decide on {_them(new)}")
    if "improved" in labels:
        found.append("some cells improved; accuracy-check update RUN_FOLDER --reason '...' keeps it so")
    if "undecided" in labels:
        again = fresh_seeds(run)
        found.append(f"a second look settles the undecided: the same run with {again}, then --second ITS_FOLDER")
    return found


def _of_power(items: Sequence[Item]) -> list[str]:
    blind = [item for item in items if item.seen > RISE]
    if not blind:
        return []
    worst = max(blind, key=lambda item: item.seen)
    least = f"it takes {percent(worst.seen)}" if worst.seen < math.log(2) else "it takes more than twice the error"
    return [
        f"{count(len(blind), 'cell')} spread too much over too few seeds for a rise of 10% to be caught surely"
        f" (in {worst.name} {least}); more seeds, or a larger"
        " problem, show it"
    ]


def _them(number: int) -> str:
    return "it" if number == 1 else "them"


def fresh_seeds(run: RunTable) -> str:
    """As many seeds as the run has, none of them its own: `seed=[8,9]`."""
    seeds = sorted({int(seed) for seed in run.results["seed"]})
    first = max(seeds, default=-1) + 1
    return f"seed=[{','.join(str(first + place) for place in range(max(2, len(seeds))))}]"
