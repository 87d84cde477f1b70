"""Which table says each number of this README: see accuracy/report/evidence.py."""

import re
import runpy
from pathlib import Path
from typing import NamedTuple

import numpy as np

from accuracy.report.evidence import Said, Tables, lines

TABLE, TEXT = "gate_power/amd-epyc", "gate_power/simulated.txt"
CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
LINE = re.compile(
    r"^ +(\d+) +([\d.]+)% +(\w+) +(\w+) +(\d+) +(\d+ of [\d,]+) \(([\d.]+)\) +[\d.]+ +([\d.]+) \(([\d.]+)\)"
    r" +\S+ \S+ +(.*)$"
)


class Line(NamedTuple):
    """Of the simulation: unchanged runs that fail and their bound, rises caught and their bound, what is said."""

    alarms: str
    most: float
    caught: float
    least: float
    said: str


def quoted(tables: Tables) -> dict[str, list[Said]]:
    found = re.findall(LINE.pattern, (tables.reports / TEXT).read_text(), re.MULTILINE)
    by = {
        (int(seeds), float(spread), noise, given, int(base)): Line(alarms, *map(float, rest[:3]), rest[3])
        for seeds, spread, noise, given, base, alarms, *rest in found
    }
    return {"README.md": [*_measured(tables), *_independent(by), *_others(by)]}


def _measured(tables: Tables) -> list[Said]:
    texts = ["options", "precision", "kernel_options", "inputs_options"]
    rows = tables.rows(TABLE)
    rows = rows[rows["tensor"].notna()].fillna(dict.fromkeys(texts, ""))
    cells, at = CLAIMS["cell"].measured(CLAIMS["RunTable"](Path(), {}, rows)), CLAIMS["PRECISION"]
    published = {key: each for key, each in cells.items() if not key[at]}
    planted = {CLAIMS["_published"](key): each for key, each in cells.items() if key[at]}
    spreads = {key: each.values().std(ddof=1) for key, each in published.items()}
    bad, of_cells, reruns = _counts(CLAIMS["_left_alone"](published), r"^(\d+) of (\d+) cells in (\d+)")
    hits, tried = _counts(CLAIMS["_raised"](published), r"^(\d+) of (\d+)")
    rises = re.findall(r"(\w+) bfloat16 W=(\d) dq (\S+%): (\d+) of", CLAIMS["_caught"](published, planted).evidence)
    rise = {(name, int(size)): (share, int(count)) for name, size, share, count in rises}
    eight, four = ([rise[name, size] for name in ("zigzag", "ring")] for size in (8, 4))
    return [
        Said("24 seeds: {:,} cases,", (tables.cases(TABLE)["ok"],)),
        Said("{:.2%} in the median and {:.2%} at most (dv).", (np.median([*spreads.values()]), max(spreads.values())),
             holds="dv" in max(spreads, key=lambda key: spreads[key])),
        Said("| of {} cells in {} real reruns with fresh seeds are called anything but the same | {} |",
             (of_cells, reruns, bad)),
        Said("| of {} real cells with 10% more error put on them, each as one of 500, are caught at the first look"
             " | {} |", (tried, hits)),
        Said("at 8 ranks: zigzag {}, ring {} | {} of {} reruns each |",
             (eight[0][0], eight[1][0], eight[0][1], reruns), holds=eight[0][1] == eight[1][1]),
        Said("at 4 ranks: zigzag {}, ring {} (below the forgiven 5%) | {} and {} of {} |",
             (four[0][0], four[1][0], four[0][1], four[1][1], reruns)),
    ]  # fmt: skip


def _counts(claim: object, pattern: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.search(pattern, claim.evidence).groups())


def _share(most: float) -> str:
    return f"{most:.2%}" if most < 0.001 else f"{most:.1%}"


def _short(*each: Line, bounds: bool = True) -> str:
    """Shares caught; with the lower bound where a share is neither 0 nor 1."""
    return ", ".join(
        f"{line.caught:.2f}" + (f" ({line.least:.2f})" if bounds and 0.8 <= line.caught < 0.995 else "")
        if line.caught
        else "0"
        for line in each
    )


def _independent(by: dict[tuple[object, ...], Line]) -> list[Said]:
    one, low, high = (by[8, spread, "normal", "fresh", 24] for spread in (1.0, 0.4, 2.4))
    table = {
        "normal, spread 1.0% | 8, 24": [
            f"{one.alarms} (at most {_share(one.most)})",
            f"{one.caught:.2f} (at least {one.least:.3f})",
        ],
        "normal, spread 0.4%, 2.4% | 8, 24": [
            f"{low.alarms} each (at most {_share(max(low.most, high.most))})",
            f"{low.caught:.2f}, {high.caught:.2f} (at least {min(low.least, high.least):.2f})",
        ],
    }
    for degrees, noise in ((5, "heavy"), (3, "heavier")):
        mine, wide = (by[8, spread, noise, "fresh", 24] for spread in (1.0, 2.4))
        table[f"Student's t of {degrees} degrees, 1.0% | 8, 24"] = [
            f"{mine.alarms} (at most {_share(mine.most)}); said in {mine.said.split(', ')[1]}",
            f"{mine.caught:.2f} ({mine.least:.3f}); {wide.caught:.2f} ({wide.least:.2f}) at 2.4%",
        ]
    return lines(table)


def _others(by: dict[tuple[object, ...], Line]) -> list[Said]:
    fresh, same = (by[8, 1.0, "alike", given, 24] for given in ("fresh", "same"))
    seeds = [1, 2, 3, 4, 6, 8]
    against_24 = [by[size, 1.0, "normal", "same", 24] for size in seeds[:5]]
    as_many = [by[size, 1.0, "normal", "same", size] for size in seeds]
    wide = [by[size, 2.4, "normal", "same", 24] for size in seeds]
    none = all(line.alarms == "0 of 1,000" for line in (*against_24, *as_many))
    return [
        *lines(
            {
                "neighbouring seeds correlated by 0.9, spread 1% | 8, 24": [
                    f"{fresh.alarms} with fresh seeds (at most {_share(fresh.most)}), {same.alarms} with the baseline's"
                    f" ({_share(same.most)}); said in {fresh.said.split(', ')[0]}",
                    f"{min(fresh.caught, same.caught):.2f}",
                ],
                "normal, 1.0% | 1, 2, 3, 4, 6, against 24": [
                    f"0 of 1,000 each (at most {_share(against_24[0].most)}); one seed is said",
                    _short(*against_24),
                ],
                "normal, 1.0% | 1, 2, 3, 4, 6, 8 against as many": [
                    f"0 of 1,000 each (at most {_share(as_many[0].most)})",
                    _short(*as_many),
                ],
                "normal, 2.4% | 1, 2, 3, 4, 6, 8 against 24": [
                    f"0 or 1 of 1,000 (at most {_share(max(line.most for line in wide))})",
                    _short(*wide),
                ],
            }
        ),
        Said("500 cells of six measures,", holds=none),
        Said('"at most" and "at least" with 95% confidence'),
        Said(
            "So 1 in 1,000 holds for independent seeds, of normal noise and of tails down to t of 3 degrees.",
            holds=none,
        ),
    ]
