"""What the gate promises, on seeds that were measured: it leaves the unchanged alone and catches what is 10% worse.

The first 24 seeds are the baseline; every further eight are a rerun that never saw it. The simulation draws matrices of
500 cells with the spreads that the table has, and noise that is normal or the table's own.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from accuracy.core import plugins
from accuracy.gate import judge
from accuracy.gate.statistics import RISE
from accuracy.results import cell
from accuracy.results.cell import KEYS, Cell, Key
from accuracy.results.claim import Claim
from accuracy.results.run_table import RunTable

simulation = plugins.load(str(Path(__file__).with_name("simulation.py")))
BASELINE, CELLS, SEEDS, Design = simulation.BASELINE, simulation.CELLS, simulation.SEEDS, simulation.Design

RUNS = 15_000  # a first look may fail 1 run in 2,000: 8 of these, which shows less than 1 in 1,000 with 95% confidence
PRECISION = KEYS.index("precision")
Cells = dict[Key, Cell]


def claims(results: pd.DataFrame) -> list[Claim]:
    texts = ["options", "precision", "kernel_options", "inputs_options"]
    rows = results[results["tensor"].notna()].fillna(dict.fromkeys(texts, ""))
    if rows["seed"].nunique() < BASELINE + SEEDS:
        return [Claim("The gate's figures hold on reruns.", None, f"fewer than {BASELINE + SEEDS} seeds")]
    cells = cell.measured(RunTable(Path(), {}, rows))
    published = {key: each for key, each in cells.items() if not key[PRECISION]}
    planted = {_published(key): each for key, each in cells.items() if key[PRECISION]}
    spreads = np.sort([each.values().std(ddof=1) for each in published.values()])
    designs = {"fresh seeds": Design(paired=False), "the baseline's seeds": Design(paired=True)}
    designs["noise of this table"] = Design(paired=False, draw=_noise(published))
    return [
        *(_quiet(spreads, design, named) for named, design in designs.items()),
        *(_sharp(spreads, design, named) for named, design in designs.items()),
        _left_alone(published),
        _raised(published),
        _caught(published, planted),
    ]


def _published(key: Key) -> Key:
    """The same cell without the planted fault."""
    return (*key[:PRECISION], "", *key[PRECISION + 1 :])


def _noise(published: Cells):
    """Draws from all cells' own seeds, each cell brought to mean 0 and variance 1."""
    values = [each.values() for each in published.values()]
    pool = np.concatenate([(y - y.mean()) / y.std(ddof=1) for y in values])
    return lambda random, shape: random.choice(pool, shape)


def _quiet(spreads: np.ndarray, design: Design, named: str) -> Claim:
    drawn = np.random.default_rng(0).choice(spreads, CELLS)
    alarms, asked = simulation.false_alarms(drawn, RUNS, design)
    statement = f"Simulated, {named}: of an unchanged matrix of {CELLS} cells at most 1 run in 1,000 fails."
    evidence = f"{alarms} failed: below {alarms.upper:.1e} with 95% confidence; {asked.hits} asked for a second look"
    return Claim(statement, alarms.upper <= 1e-3, evidence)


def _sharp(spreads: np.ndarray, design: Design, named: str) -> Claim:
    statement = f"Simulated, {named}: a rise of one cell of {CELLS} by 10% is caught with probability 0.99 at 8 seeds."
    first, later = simulation.caught(spreads, 0.10, 20_000, design)
    evidence = (
        f"{first} at the first look (at least {first.lower:.4f} with 95% confidence), {later} after two; spreads of"
        f" {np.median(spreads):.2%} in the median, {spreads.max():.2%} at most"
    )
    return Claim(statement, first.lower >= 0.99, evidence)


def _left_alone(published: Cells) -> Claim:
    reruns, base = _reruns(published), _baseline(published)
    labels = [found.label for rerun in reruns for found in judge.first_look(rerun, base, CELLS).values()]
    bad = [label for label in labels if label in ("regression", "outlier", "undecided")]
    evidence = f"{len(bad)} of {len(labels)} cells in {len(reruns)} reruns were called anything else than the same"
    return Claim("Measured: no rerun of the unchanged code with fresh seeds fails.", not bad, evidence)


def _raised(published: Cells) -> Claim:
    """Every measured rerun of every cell, with 10% more error put on it, as one cell of 500."""
    base = _baseline(published)
    labels = [
        judge.first_look({key: _raise(each)}, base, CELLS)[key].label
        for rerun in _reruns(published)
        for key, each in rerun.items()
    ]
    hits = sum(label in ("regression", "outlier") for label in labels)
    statement = f"Measured: 10% more error in one cell of {CELLS} of a rerun is caught 99 times in 100."
    return Claim(statement, hits >= 0.99 * len(labels), f"{hits} of {len(labels)} at the first look")


def _raise(each: Cell) -> Cell:
    return replace(each, y={seed: y + RISE for seed, y in each.y.items()})


def _caught(published: Cells, planted: Cells) -> Claim:
    """Every rerun with dq summed in 16 bits, against the published baseline."""
    statement = "Measured: every cell that the planted accumulator makes 10% worse fails in every rerun."
    base = _baseline(published)
    rises = {key: float(np.mean(each.values() - published[key].values())) for key, each in planted.items()}
    worse = {key: rise for key, rise in rises.items() if rise >= RISE}
    if not worse:
        return Claim(statement, None, f"the largest rise is {np.expm1(max(rises.values(), default=0)):+.1%}")
    reruns = _reruns(planted)
    found = [judge.first_look(rerun, base, CELLS) for rerun in reruns]
    parts, held = [], True
    for key, rise in sorted(rises.items(), key=lambda pair: -pair[1]):
        if rise > np.log(1.03):
            hits = sum(each[key].label in ("regression", "outlier") for each in found)
            held &= key not in worse or hits == len(reruns)
            parts.append(f"{cell.named(key, [])} {np.expm1(rise):+.1%}: {hits} of {len(reruns)}")
    return Claim(statement, held, "; ".join(parts))


def _baseline(cells: Cells) -> Cells:
    return {key: _only(each, each.seeds[:BASELINE]) for key, each in cells.items()}


def _only(each: Cell, seeds: list[int]) -> Cell:
    """With these seeds' numbers; all else is left."""
    more = {name: {seed: values[seed] for seed in seeds if seed in values} for name, values in each.more.items()}
    exact = {seed: each.exact[seed] for seed in seeds if seed in each.exact}
    return replace(each, y={seed: each.y[seed] for seed in seeds}, more=more, exact=exact)


def _reruns(cells: Cells) -> list[Cells]:
    seeds = next(iter(cells.values())).seeds
    groups = [seeds[place : place + SEEDS] for place in range(BASELINE, len(seeds) - SEEDS + 1, SEEDS)]
    return [{key: _only(each, group) for key, each in cells.items()} for group in groups]
