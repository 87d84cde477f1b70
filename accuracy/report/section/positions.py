"""Section: where along the sequence is the error, and does it jump where one rank's chunk ends?"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, grid
from accuracy.core.number import scientific
from accuracy.report.section.verdict import zigzag_cases
from accuracy.report.series import (
    MOST_DETAILED_FACETS,
    SINGLE_DEVICE,
    Facet,
    facets_of,
    series_order,
    tensor_order,
    with_labels,
)  # fmt: skip
from accuracy.results.table import OK

MOST_LEGIBLE_WORLD = 16
TABLE_RANGES = 16


def position_panel(facet: Facet, positions: pd.DataFrame, slots: dict[str, int]) -> Panel | None:
    """Charts per (sharding, tensor) at one world size: shardings have chunk borders in different places."""
    cases = facet.rows.drop_duplicates("case_id")[["case_id", "series", "variant", "sharding", "world_size"]]
    found = positions.merge(cases, on="case_id")
    size = chosen_world(found["world_size"].unique().tolist()) if len(found) else 0
    single_device = _profile(found[found["variant"] == SINGLE_DEVICE])
    chosen = found[(found["world_size"] == size) & ((found["variant"] != SINGLE_DEVICE) | (size == 1))]
    if chosen.empty:
        return None
    profile = _profile(chosen)
    legend = [mark.series_key(label, slots[label]) for label in series_order(chosen)]
    if not single_device.empty:
        legend.append(mark.reference_key("single-device kernel"))
    return Panel(
        f"positions-{facet.slug}",
        facet.label,
        f"World size {size}; rms over seeds, heads and dims in bins of tokens.",
        legend=tuple(legend),
        charts=tuple(
            _chart(facet, str(sharding), tensor, group, single_device, size, slots)
            for sharding, group in profile.groupby("sharding")
            for tensor in tensor_order(group["tensor"])
        ),
        data=(_table(facet, profile, size),),
    )


def chosen_world(sizes: Sequence[int]) -> int:
    """The largest world size whose chunks can still be told apart, else the smallest that has chunks at all."""
    legible = [size for size in sizes if 1 < size <= MOST_LEGIBLE_WORLD]
    return int(max(legible) if legible else min([size for size in sizes if size > 1] or sizes))


def drawn(results: pd.DataFrame, positions: pd.DataFrame) -> pd.DataFrame:
    """The positions of the cases that a page of these results shows: in its charts, and as zigzag's chunks."""
    held = results[results["case_id"].isin(positions["case_id"])]
    if held.empty:
        return positions[:0]
    chunks = zigzag_cases(held)
    shown = [*chunks.index[chunks["world_size"] == chunks["world_size"].max()]]
    measured = results[(results["status"] == OK) & results["tensor"].notna()]
    for facet in facets_of(with_labels(results).loc[measured.index])[:MOST_DETAILED_FACETS]:
        rows = facet.rows[facet.rows["case_id"].isin(held["case_id"])]
        size = chosen_world(rows["world_size"].unique().tolist()) if len(rows) else None
        shown += [*rows.loc[(rows["world_size"] == size) | (rows["variant"] == SINGLE_DEVICE), "case_id"]]
    return positions[positions["case_id"].isin(shown)]


def _profile(found: pd.DataFrame) -> pd.DataFrame:
    """Seeds joined: per (series, sharding, tensor, bin) the rms and the bin's rank."""
    keys = ["variant", "series", "sharding", "tensor", "token_begin", "token_end"]
    squared = found.assign(square=found["error_rms"].astype("float64") ** 2)
    joined = squared.groupby(keys, dropna=False).agg({"square": "mean", "rank": "first"}).reset_index()
    return joined.assign(error_rms=joined["square"].map(math.sqrt))


def borders(rows: pd.DataFrame) -> list[int]:
    """Tokens at which another rank begins; none where bins are shared by ranks (striped sharding)."""
    bins = rows.drop_duplicates("token_begin").sort_values("token_begin")
    changes = bins["rank"].diff().fillna(0) != 0
    return [] if (bins["rank"] < 0).any() else bins.loc[changes, "token_begin"].astype(int).tolist()


def _chart(
    facet: Facet, sharding: str, tensor: str, group: pd.DataFrame, single_device: pd.DataFrame, size: int,
    slots: dict[str, int],
) -> Chart:  # fmt: skip
    rows, reference = (each[each["tensor"] == tensor] for each in (group, single_device))
    axes = drawing.new_axes(f"{tensor} · {sharding}", "global token position", height=2.5)
    drawing.log_y(axes, [*rows["error_rms"], *reference["error_rms"]])
    edges = borders(rows)
    for edge in edges:
        axes.axvline(edge, color=drawing.BORDER, linewidth=0.7, zorder=1, clip_on=False)
    for _, found in reference.groupby("series"):
        _draw(axes, found, 0, linewidth=0.9, color=drawing.SINGLE_DEVICE, gid="single-device")
    texts = []
    for label, found in rows.groupby("series"):
        _draw(axes, found, slots[str(label)], linewidth=1.1)
        worst = found.sort_values("error_rms").iloc[-1]
        texts.append(f"{label} greatest {scientific(worst['error_rms'])} near token {int(worst['token_begin'])}")
    end = int(rows["token_end"].max())
    axes.set_xlim(0, end)
    drawing.fix_ticks(axes.xaxis, [end * k / 4 for k in range(5)], [end * k // 4 for k in range(5)])
    title = f"{tensor}: rms error by token position, {sharding} sharding, {facet.label}, world size {size}"
    where = f"Chunk borders at tokens {', '.join(map(str, edges[:40]))}. " if edges else "No chunk borders. "
    name = f"positions-{facet.slug}-{identifier(sharding)}-{tensor}"
    return Chart(to_svg(axes, name, title, f"{where}{'; '.join(texts)}."), title)


def identifier(text: str) -> str:
    """Letters and digits of a name, for an identifier."""
    return "".join(letter for letter in text if letter.isascii() and letter.isalnum())


def _draw(axes: Axes, found: pd.DataFrame, slot: int, **look: Any) -> None:
    ordered = found.sort_values("token_begin")
    middles = (ordered["token_begin"] + ordered["token_end"]) / 2
    drawing.line(axes, middles, ordered["error_rms"], slot, marker="", **look)


def _table(facet: Facet, profile: pd.DataFrame, size: int) -> Table:
    """The same in sixteen ranges of tokens."""
    end = int(profile["token_end"].max())
    middle = (profile["token_begin"] + profile["token_end"]) / 2
    place = (middle * TABLE_RANGES / end).astype(int).clip(0, TABLE_RANGES - 1)
    square: Any = profile.assign(place=place).groupby(["tensor", "place", "series"])["square"].mean()
    texts = {
        (tensor, f"{end * part // TABLE_RANGES} to {end * (part + 1) // TABLE_RANGES}", label): scientific(value**0.5)
        for (tensor, part, label), value in square.reindex(tensor_order(profile["tensor"]), level="tensor").items()
    }
    caption = f"Rms error by token range, {facet.label}, world size {size}"
    return grid(caption, ("tensor", "tokens"), series_order(profile), texts)
