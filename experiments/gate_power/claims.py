"""What the gate promises, on seeds that were measured: it leaves the unchanged alone and catches what is 10% worse.

The first eight seeds are the baseline; every further eight are a rerun that never saw it. The simulation draws matrices
of 500 cells with the spreads that the table has.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from accuracy.check import against, cell
from accuracy.check.cell import KEYS, Cell, Key
from accuracy.check.evidence import Evidence
from accuracy.check.simulation import CELLS, SEEDS, caught, false_alarms
from accuracy.claim import Claim

RUNS = 15_000  # a first look may fail 1 run in 2,000: 8 of these, which shows less than 1 in 1,000 with 95% confidence
ENOUGH = 0.014
PRECISION = KEYS.index("precision")


def claims(results: pd.DataFrame) -> list[Claim]:
    texts = ["options", "precision", "kernel_options", "inputs_options"]
    rows = results[results["tensor"].notna()].fillna(dict.fromkeys(texts, ""))
    if rows["seed"].nunique() < 3 * SEEDS:
        return [Claim("The gate's figures hold on reruns.", None, f"fewer than {3 * SEEDS} seeds")]
    cells = cell.measured(Evidence(Path(), {}, rows))
    published = {key: each for key, each in cells.items() if not key[PRECISION]}
    planted = {_published(key): each for key, each in cells.items() if key[PRECISION]}
    spreads = np.sort([each.values().std(ddof=1) for each in published.values()])
    return [
        _quiet(spreads, paired=False),
        _quiet(spreads, paired=True),
        _sharp(spreads, paired=False),
        _sharp(spreads, paired=True),
        _sharp_enough(paired=False),
        _sharp_enough(paired=True),
        _left_alone(published),
        _caught(published, planted),
    ]


def _published(key: Key) -> Key:
    """The same cell without the planted fault."""
    return (*key[:PRECISION], "", *key[PRECISION + 1 :])


def _quiet(spreads: np.ndarray, paired: bool) -> Claim:
    drawn = np.random.default_rng(0).choice(spreads, CELLS)
    alarms, asked = false_alarms(drawn, RUNS, paired)
    statement = f"Simulated, {_seeds(paired)}: of an unchanged matrix of {CELLS} cells at most 1 run in 1,000 fails."
    evidence = f"{alarms} failed: below {alarms.upper:.1e} with 95% confidence; {asked.hits} asked for a second look"
    return Claim(statement, alarms.upper <= 1e-3, evidence)


def _sharp(spreads: np.ndarray, paired: bool) -> Claim:
    statement = f"Simulated, {_seeds(paired)}: a rise of one cell by 10% is caught with probability 0.99 at 8 seeds."
    first, later = caught(spreads, 0.10, 20_000, paired)
    evidence = (
        f"{first} at the first look, {later} after two (at least {later.lower:.4f} with 95% confidence); spreads of"
        f" {np.median(spreads):.2%} in the median, {spreads.max():.2%} at most"
    )
    return Claim(statement, later.lower >= 0.99, evidence)


def _sharp_enough(paired: bool) -> Claim:
    """Of the rule, not of this table: up to what spread 8 seeds are enough. `regression` holds its cells to it."""
    statement = (
        f"(Added after the run.) Simulated, {_seeds(paired)}: at a spread of {ENOUGH:.1%} a rise of one cell by 10% is"
        " caught with probability 0.99 at the first look."
    )
    first, _ = caught(np.array([ENOUGH]), 0.10, 20_000, paired)
    return Claim(statement, first.lower >= 0.99, f"{first}: at least {first.lower:.4f} with 95% confidence")


def _seeds(paired: bool) -> str:
    return "the baseline's seeds" if paired else "fresh seeds"


def _left_alone(published: dict[Key, Cell]) -> Claim:
    reruns = _reruns(published)
    labels = [found.label for rerun in reruns for found in against.first_look(rerun, _first(published)).values()]
    bad = [label for label in labels if label in ("regression", "outlier", "undecided")]
    evidence = f"{len(bad)} of {len(labels)} cells in {len(reruns)} reruns were called anything else than the same"
    return Claim("Measured: no rerun of the unchanged code with fresh seeds fails.", not bad, evidence)


def _caught(published: dict[Key, Cell], planted: dict[Key, Cell]) -> Claim:
    """Every rerun with dq summed in 16 bits, against the published baseline."""
    statement = "Measured: every cell that the planted accumulator makes 10% worse fails in every rerun."
    base = _first(published)
    rises = {key: float(np.mean(each.values() - published[key].values())) for key, each in planted.items()}
    worse = {key: rise for key, rise in rises.items() if rise >= np.log(1.10)}
    if not worse:
        return Claim(statement, None, f"the largest rise is {np.expm1(max(rises.values(), default=0)):+.1%}")
    reruns = _reruns(planted)
    found = [against.first_look(rerun, base) for rerun in reruns]
    parts, held = [], True
    for key, rise in sorted(rises.items(), key=lambda pair: -pair[1]):
        if rise > np.log(1.03):
            hits = sum(each[key].label in ("regression", "outlier") for each in found)
            held &= key not in worse or hits == len(reruns)
            parts.append(f"{cell.named(key, [])} {np.expm1(rise):+.1%}: {hits} of {len(reruns)}")
    return Claim(statement, held, "; ".join(parts))


def _first(cells: dict[Key, Cell]) -> dict[Key, Cell]:
    return {key: _only(each, each.seeds[:SEEDS]) for key, each in cells.items()}


def _reruns(cells: dict[Key, Cell]) -> list[dict[Key, Cell]]:
    seeds = next(iter(cells.values())).seeds
    groups = [seeds[place : place + SEEDS] for place in range(SEEDS, len(seeds) - SEEDS + 1, SEEDS)]
    return [{key: _only(each, group) for key, each in cells.items()} for group in groups]


def _only(each: Cell, seeds: list[int]) -> Cell:
    y = {seed: each.y[seed] for seed in seeds}
    return Cell(each.key, y, each.error, each.yardstick, each.rank_ratio, each.max_ratio, each.nonfinite)
