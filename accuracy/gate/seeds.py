"""Which seeds of the baseline does a run leave out? A bad seed that nobody plans is missed like one that is lost.

A run has the baseline's first seeds, or fresh ones, and no fewer than `policy.SEEDS` where the baseline has as many.
The tests take seeds as independent; whether they are is tested too.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pandas as pd

from accuracy.core.number import count
from accuracy.gate.item import Item
from accuracy.results import cell
from accuracy.results.cell import KEYS, Cell, Key
from accuracy.results.policy import DEPENDENT, SAME_INPUTS, SEEDS
from accuracy.results.table import ALL_RANKS

PERMUTATIONS = 4000
PART = "measure it, or say --part"


def left_out(
    cells: Mapping[Key, Cell], baseline: Mapping[Key, Cell], second: Mapping[Key, Cell], also: list[str]
) -> Iterator[Item]:
    """One item for each kind of gap, named after its first cell. second: of a second look."""
    gaps: dict[str, list[Key]] = {}
    for key, each in cells.items():
        if key in baseline and baseline[key].y and not each.nonfinite:
            ours = {*each.seeds, *(second[key].seeds if key in second else ())}
            if text := _gap(ours, baseline[key].seeds):
                gaps.setdefault(text, []).append(key)
    for text, keys in gaps.items():
        others = f" (and {count(len(keys) - 1, 'further cell')})" if keys[1:] else ""
        yield Item(cell.named(keys[0], also), "missing", f"{text}{others}; {PART}")


def other_inputs(run: pd.DataFrame, baseline: pd.DataFrame, also: list[str]) -> Iterator[Item]:
    """A seed whose inputs are no longer the baseline's: on easier ones a worse kernel looks better. By the size of the
    reference, of tensors that are no small difference of large numbers."""
    by = [*KEYS, "seed"]
    sizes = [
        rows.loc[(rows["rank"] == ALL_RANKS) & rows["tensor"].isin(["out", "dv"]), [*by, "reference_rms"]]
        for rows in (run, baseline)
    ]
    both = sizes[0].merge(sizes[1], on=by, suffixes=("", "_before"))
    new, old = both["reference_rms"], both["reference_rms_before"]
    apart = both[(new - old).abs() > SAME_INPUTS * np.maximum(new, old)]
    if len(apart):
        first = apart.iloc[0]
        others = f" (and of {count(len(apart) - 1, 'further row')})" if len(apart) > 1 else ""
        yield Item(
            cell.named(tuple(first[list(KEYS)]), also),
            "missing",
            f"the inputs of seed {first['seed']} are not the baseline's: the root mean square of the reference is"
            f" {first['reference_rms']:.3g} and was {first['reference_rms_before']:.3g}{others}; give other inputs a"
            " name or options of their own, or accept a new baseline",
        )


def copied(first: Mapping[Key, Cell], second: Mapping[Key, Cell], also: list[str]) -> Iterator[Item]:
    """A second look that has a seed of the first under another number."""
    for key, each in second.items():
        known = {numbers.tobytes() for numbers in (first[key].exact.values() if key in first else ())}
        for seed, numbers in each.exact.items():
            if numbers.tobytes() in known and (numbers[:, 0] > 0).any():
                text = f"seed {seed} of the second look has the numbers of a seed of the first, to the last bit"
                yield Item(cell.named(key, also), "missing", text)
                break


def doubts(whose: str, cells: Iterable[Cell]) -> Iterator[str]:
    """Why p-values do not hold: one seed, or neighbouring seeds that are alike. whose: the run's or the baseline's."""
    cells = [each for each in cells if each.y]
    if not cells:
        return
    seeds, _ = Counter(tuple(each.seeds) for each in cells).most_common(1)[0]
    if len(seeds) == 1:
        yield f"{whose} has one seed: nothing tells chance from change; measure {SEEDS} seeds"
    elif (p := dependence(np.array([each.values() for each in cells if tuple(each.seeds) == seeds]))) <= DEPENDENT:
        yield (
            f"neighbouring seeds of {whose} are alike (p = {p:.1g}): the tests take seeds as independent, so unchanged"
            " cells fail too often; give every seed inputs of its own"
        )


def dependence(y: np.ndarray) -> float:
    """p-value of the seeds' order, y (cells, seeds): how often seeds in random order have neighbours as alike as these,
    by the products of neighbours summed over all cells. A permutation test (Fisher 1935): it is exact whatever the
    noise is, and however cells depend on each other, as all cells keep the same order."""
    centred = y - y.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    alike = np.divide(centred, spread, where=spread > 0, out=np.zeros_like(centred))
    products = alike.T @ alike
    number = len(products)
    random = np.random.default_rng(0)
    orders = np.array([np.arange(number), *(random.permutation(number) for _ in range(PERMUTATIONS - 1))])
    sums = products[orders[:, :-1], orders[:, 1:]].sum(axis=1)
    return float((sums >= sums[0] - 1e-9 * abs(sums[0])).mean())


def _gap(ours: set[int], theirs: list[int]) -> str:
    common = ours & set(theirs)
    skipped = [seed for seed in theirs[: len(common)] if seed not in ours]
    if skipped:
        return f"the run leaves out seed {skipped[0]} of the baseline"
    least = min(SEEDS, len(theirs))
    return f"the run has {count(len(ours), 'seed')}, and {least} are needed" if len(ours) < least else ""
