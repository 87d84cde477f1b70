"""What must a reader of the decision know beside its items? One sentence each."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from accuracy.core.number import count
from accuracy.gate import judge, rules, seeds
from accuracy.gate.fingerprint import Entry
from accuracy.gate.item import Item, percent
from accuracy.results.cell import Key
from accuracy.results.policy import ERROR_ALONE, RISE, TAIL
from accuracy.results.run_table import RunTable


def notes(
    run: RunTable,
    baseline: RunTable | None,
    items: Sequence[Item],
    hard: Sequence[Entry],
    soft: Sequence[Entry],
    alone: Collection[Key] = (),
) -> Iterator[str]:
    """hard, soft: how the baseline's fingerprint differs; alone: cells whose kernel no single device runs."""
    apart, warned = ("; ".join(map(str, found)) for found in (hard, soft))
    if baseline is None:
        yield "no baseline was given: the portable rules decide alone"
    elif apart:
        yield f"the baseline is not comparable, the portable rules decide alone: {apart}"
    elif warned:
        yield f"warning, measured in another environment: {warned}"
    labels = [item.label for item in items]
    new = labels.count("new")
    if new and any(item.baseline is not None for item in items):
        them = "it" if new == 1 else "them"
        yield f"{count(new, 'cell')} not in the baseline: the portable rules alone decide on {them}"
    by = Counter(rules.used(item.cell, item.key in alone) for item in items if item.cell and item.baseline is None)
    yield from (f"{count(number, 'cell')} judged by {words}" for words, number in by.items())
    for whose, each in (("the run", "cell"), ("the baseline", "baseline")):
        yield from seeds.doubts(whose, [getattr(item, each) for item in items if getattr(item, each) is not None])
    heavy = judge.tails([item.baseline for item in items if item.baseline is not None], ERROR_ALONE)
    if heavy and (degrees := min(heavy.values())) < TAIL:
        yield (
            f"noise over the baseline's seeds has heavy tails (Student's t of about {degrees:.0f} degrees): a single"
            " seed fails only far out; a larger problem has less of them"
        )
    if "improved" in labels:
        yield "some cells improved; accuracy accept RUN_FOLDER --reason '...' keeps it so"
    if "undecided" in labels:
        again = fresh_seeds(run)
        yield f"a second look settles the undecided: the same run with {again}, then --second ITS_FOLDER"
    blind = [item for item in items if item.seen > RISE]
    if blind:
        worst = max(blind, key=lambda item: item.seen)
        least = f"it takes {percent(worst.seen)}" if worst.seen < math.log(2) else "it takes more than twice the error"
        yield (
            f"{count(len(blind), 'cell')} spread too much over too few seeds for a rise of 10% to be caught surely"
            f" (in {worst.name} {least}); more seeds, or a larger problem, show it"
        )
    if run.results["single_device_max"].isna().all():
        yield "the table has no single_device_max: the rule of the largest error was not applied"


def fresh_seeds(run: RunTable) -> str:
    """As many seeds as the run has, none of them its own: `seed=[8,9]`."""
    known = sorted({int(seed) for seed in run.results["seed"]})
    first = max(known, default=-1) + 1
    return f"seed=[{','.join(str(first + place) for place in range(max(2, len(known))))}]"
