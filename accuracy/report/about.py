"""What was measured on what, by which command, and what has no numbers? A line of facts, and the folded sections: with
the shares of the roundings, and with a table for a page without scripts."""

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from accuracy.chart.view import Table, TableCell, cells, grid
from accuracy.core import fields
from accuracy.core.dtype import DTYPES
from accuracy.core.number import MISSING, count, plain, ratio, scientific
from accuracy.report.folder import Run
from accuracy.report.series import geometric_means
from accuracy.results.claim import Claim
from accuracy.results.table import FAILED, OK, UNSUPPORTED
from accuracy.verdict.attribution import FINAL, KERNEL_PLACE, NAMES, Attribution

MOST_VALUES = 4
MOST_SUMMARY_ROWS = 300


def facts_line(run: Run, claims: list[Claim]) -> str:
    """Device, kernel, mask, tokens, heads, dtypes, seeds and claims in short words, joined by a dot."""
    every, held = run.cases, [claim.holds for claim in claims]
    open_ = f" ({held.count(None)} cannot be judged here)" if None in held else ""
    cases = every[every["status"] == OK] if (every["status"] == OK).any() else every
    provenance = run.record.get("provenance")
    device = provenance.get("device_name") if isinstance(provenance, dict) else None
    parts = (
        str(device or _listed(cases["device"].dropna(), "device")),
        _listed(cases["kernel"], "kernel"),
        _listed(cases["mask"], "mask"),
        _tokens(cases["seqlen"]),
        _heads(cases),
        _listed(sorted(cases["dtype"].unique(), key=lambda name: DTYPES[name].precision), "dtype"),
        count(cases["seed"].nunique(), "seed"),
        f"claims held: {held.count(True)} of {len(held) - held.count(None)}{open_}" if held else "",
    )
    return " · ".join(filter(None, parts))


def _listed(values: Iterable[Any], word: str) -> str:
    names = list(dict.fromkeys(map(str, values)))
    return ", ".join(names) if len(names) <= MOST_VALUES else f"{len(names)} {word}s"


def _tokens(values: "pd.Series[int]") -> str:
    numbers = sorted(map(int, values.dropna().unique()))
    if len(numbers) > MOST_VALUES:
        return f"{numbers[0]:,} to {numbers[-1]:,} tokens"
    return f"{', '.join(f'{number:,}' for number in numbers)} tokens" if numbers else ""


def _heads(cases: pd.DataFrame) -> str:
    shapes = cases[["heads", "heads_kv", "head_dim"]].dropna().drop_duplicates().astype(int)
    named = [f"{heads} heads{f' ({kv} of keys)' if kv != heads else ''} of {dim}" for heads, kv, dim in shapes.values]
    return named[0] if len(named) == 1 else f"{len(named)} shapes of heads" if named else ""


@dataclass(frozen=True)
class Reason:
    """Cases that share a status and a reason. command: how to try the first again if it failed; what is unsupported
    would be so again."""

    status: str
    reason: str
    heading: str
    command: str


def reasons(cases: pd.DataFrame) -> list[Reason]:
    """Why cases have no numbers: failed ones first, then by number of cases."""
    rows = cases[cases["status"].isin([FAILED, UNSUPPORTED])].fillna({"reason": "no reason given"})
    found = []
    for (status, reason), group in rows.groupby(["status", "reason"]):
        again = command(group.iloc[0].to_dict()) if status == FAILED else ""
        heading = f"{count(len(group), 'case')} {status}"
        found.append((-len(group), Reason(str(status), str(reason), heading, again)))
    found.sort(key=lambda pair: (pair[1].status != FAILED, pair[0], pair[1].reason))
    return [each for _, each in found]


def command(row: fields.Row) -> str:
    """`accuracy variant=ring dtype=bfloat16 ...`, quoted for a POSIX shell: what measures one row of the results table
    again; missing columns are left out."""
    return shlex.join(["accuracy", *fields.words(row)])


@dataclass(frozen=True)
class Environment:
    """command: as it was typed, as far as the record tells; provenance: versions, device and the settings that change
    arithmetic; configuration: resolved, as indented JSON, empty where it was not recorded."""

    command: str
    provenance: Table
    configuration: str


def environment(record: Mapping[str, Any]) -> Environment:
    """What run.json says of a run's environment."""
    provenance, config = record.get("provenance"), record.get("config")
    pairs = _flat(provenance) if isinstance(provenance, Mapping) else ()
    return Environment(
        str(record.get("command") or "not recorded"),
        Table("Environment of the run", ("item", "value"), tuple(cells(*pair) for pair in pairs)),
        json.dumps(config, indent=2, default=str, ensure_ascii=False) if config else "",
    )


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item if isinstance(item, str) else json.dumps(item, default=str)


def attribution_tables(found: list[Attribution]) -> Iterator[Table]:
    """Shapley shares of each rounding place in the error: for each variant, dtype and world size whose places were
    switched in all combinations, of the excess over single device and of the whole."""
    groups: dict[str, list[Attribution]] = {}
    for each in found:
        groups.setdefault(f"{each.variant}, {each.dtype}, world size {each.world_size}", []).append(each)
    for label, same in groups.items():
        heads = {each.tensor: f"{each.tensor} ({plain(each.x_single_device)}x)" for each in same}
        places = [place for place in NAMES if any(place in each.shares for each in same)]
        own = [place for place in places if place not in (KERNEL_PLACE, FINAL)]
        excess = {(NAMES[place], heads[each.tensor]): _bar(each.excess.get(place)) for place in own for each in same}
        shares = {(NAMES[place], heads[each.tensor]): _bar(each.shares.get(place)) for place in places for each in same}
        yield grid(f"{label}: share of the excess over single device", ["place"], heads.values(), excess)
        yield grid(f"{label}: share of the whole mean square error", ["place"], heads.values(), shares)


def _bar(share: float | None) -> TableCell:
    """A percentage with a bar as long."""
    if share is None:
        return TableCell(MISSING, kind="absent")
    text = f"{round(100 * share, 1) + 0.0:.1f}%"  # no minus zero
    return TableCell(text, kind="bar", heat=round(max(0.0, min(1.0, share)), 3))


def summary_table(whole: pd.DataFrame) -> Table:
    """The page without JavaScript: a plain row per (variant, setting, world size, tensor), seeds joined; the furthest
    from single device first where there are too many. whole: rows over all ranks."""
    errors = ("error_rel", "error_max", "diff_rel", "diff_max")
    ways: dict[str, Callable[[object], str]] = dict.fromkeys(errors, scientific)
    ways |= {"x_floor": ratio, "x_single_device": ratio}
    keys = ["facet", "series", "world_size", "tensor"]
    most = whole.groupby(keys)[["error_max", "diff_max"]].max()
    joined = geometric_means(whole, keys, [name for name in ways if name not in most]).join(most).reset_index()
    caption = "Rows over all ranks, geometric mean over seeds (maxima: greatest)"
    if len(joined) > MOST_SUMMARY_ROWS:
        caption += f"; the {MOST_SUMMARY_ROWS:,} furthest from single device of {count(len(joined), 'row')}"
        joined = joined.sort_values("x_single_device", ascending=False, kind="stable").head(MOST_SUMMARY_ROWS)
    order = ("series", "facet", "world_size", "tensor")
    rows = (
        cells(*(row[name] for name in order), *(way(row[name]) for name, way in ways.items()))
        for row in joined.to_dict("records")
    )
    return Table(caption, ("variant", "setting", "world size", "tensor", *ways), tuple(rows))
