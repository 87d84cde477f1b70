"""How far apart are the two paths of a run's pairs? A table of the furthest pairs, and two tiles."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from accuracy.chart.view import Table, TableCell, grid
from accuracy.core.number import count, plain, ratio, scientific
from accuracy.paths.table import BEYOND, EQUAL, SETTING, pairs
from accuracy.results.table import ALL_RANKS, ALL_TENSORS
from accuracy.verdict.headline import Tile

TITLE = "Drift over the limit of two healthy roundings"
NEARER, MARK = "nearer", "▲ "
MOST_PAIRS = 40


class Drift(NamedTuple):
    """label: the section's title; tiles: the largest drift, and how many tensors are equal; table: the furthest pairs,
    `MOST_PAIRS` at most, by tensors, the drift over the limit."""

    label: str
    tiles: tuple[Tile, ...]
    table: Table


def drift_of(results: pd.DataFrame) -> Drift | None:
    """Return None where no pair of paths was measured. Of several seeds the largest drift counts."""
    found = pairs(results)
    found = found[(found["rank"] == ALL_RANKS) & found["tensor"].notna() & (found["label"] != "")]
    if found.empty:
        return None
    over = np.where(found["label"] == EQUAL, 0.0, found["drift_rel"] / found["drift_limit"])
    found = found.assign(over=over, pair=_named(found)).sort_values("over", ascending=False, kind="stable")
    most = found.drop_duplicates(["pair", "tensor"])
    first = most.iloc[0]
    beyond, pairs_of = int((most["label"] == BEYOND).groupby(most["pair"]).any().sum()), most["pair"].nunique()
    tiles = (
        Tile(ratio(first["over"]), f"the limit of two healthy roundings: {first['tensor']} of {first['pair']}"),
        Tile(f"{(most['label'] == EQUAL).sum()} of {len(most)}", "tensors of pairs are equal, bit for bit"),
    )
    label = f"How far apart the paths are: {beyond} of {count(pairs_of, 'pair')} beyond two healthy roundings"
    return Drift(label, tiles, _table(most))


def _named(found: pd.DataFrame) -> "pd.Series[str]":
    """`ring@4 and single_device@1`, and settings that vary; a kernel common to all paths is left out."""
    kernels = {path.partition("+")[2] for path in {*found["path_a"], *found["path_b"]}}
    a, b = ((found[name].str.partition("+")[0] if len(kernels) == 1 else found[name]) for name in ("path_a", "path_b"))
    varying = [name for name in SETTING if name != "seed" and found[name].nunique() > 1]
    named = a + " and " + b
    for name in varying:
        named = named + ", " + found[name].astype(str)
    return named


def _table(most: pd.DataFrame) -> Table:
    most = most[most["pair"].isin(most["pair"].unique()[:MOST_PAIRS])]
    cells: dict[tuple[str, str], TableCell | str] = {(pair, NEARER): "neither" for pair in most["pair"]}
    for row in most.to_dict("records"):
        cells[row["pair"], row["tensor"]] = _cell(row)
    for pair, same in most[most["nearer"] != "neither"].groupby("pair"):
        sides = same.groupby("nearer")["tensor"].agg(lambda names: ", ".join(_ordered(names)))
        cells[str(pair), NEARER] = "; ".join(f"{side}: {names}" for side, names in sides.items())
    caption = f"{TITLE}, all ranks, and the drift itself. Nearer to the reference: the first path (a), the second (b)"
    return grid(caption, ["pair"], [*_ordered(most["tensor"]), NEARER], cells)


def _ordered(tensors: Iterable[str]) -> list[str]:
    return sorted({*tensors}, key=ALL_TENSORS.index)


def _cell(row: Mapping[Any, Any]) -> TableCell:
    """The drift over the limit, with a mark where it is beyond, and the drift."""
    if row["label"] == EQUAL:
        return TableCell(EQUAL, kind="absent", hint="to the last bit")
    mark, kind = (MARK, "flagged") if row["label"] == BEYOND else ("", "")
    return TableCell(f"{mark}{plain(row['over'])}", scientific(row["drift_rel"], 2), kind)
