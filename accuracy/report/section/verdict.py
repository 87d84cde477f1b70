"""Section: bug or rounding? The verdict of every tensor, the evidence, and the traced steps."""

from dataclasses import dataclass

import pandas as pd

from accuracy.chart.view import Panel, Table, cells
from accuracy.core.dtype import DTYPES
from accuracy.core.number import ratio, scientific, signed
from accuracy.results.table import ALL_TENSORS
from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.facts import Facts
from accuracy.verdict.label import LABELS, NOT_MEASURED, ROUNDING
from accuracy.verdict.rows import names_of, with_names
from accuracy.verdict.verdict import verdicts

MOST_FINDINGS = 60
MOST_STEPS = 40


@dataclass(frozen=True)
class Judged:
    """verdicts: of the whole run; found: the facts of each variant, gravest first; cells: the verdicts of what was
    measured, with the variant's name in the column `named`; panel: their tables, None where nothing was measured."""

    verdicts: pd.DataFrame
    found: list[Facts]
    cells: pd.DataFrame
    panel: Panel | None


def judge(results: pd.DataFrame, positions: pd.DataFrame, steps: pd.DataFrame, hypotheses: pd.DataFrame) -> Judged:
    """The verdicts of a whole run."""
    judged = verdicts(results)
    measured = with_names(judged[judged["label"] != NOT_MEASURED], names_of(results))
    if measured.empty:
        return Judged(judged, [], measured, None)
    found = diagnoses(measured.drop(columns="named"), results, steps, hypotheses)
    accounted = steps["finding"].notna()
    findings, steps = steps[accounted], steps[~accounted]
    data = (_by_step(results, steps), _chunks(results, positions), _traced(steps), _account(findings))
    panel = Panel(
        "verdict-all",
        "Every verdict",
        "The matrix above has every tensor of the setting that is shown.",
        tables=tuple(table for table in [_findings(measured)] if table.rows),
        data=tuple(table for table in data if table and table.rows),
    )
    return Judged(judged, found, measured, panel)


def _bits(dtype: str) -> int:
    return DTYPES[dtype].precision


def _findings(judged: pd.DataFrame) -> Table:
    """Everything that is not mere rounding: a row for world sizes with the same label, with the largest's evidence."""
    order = judged.assign(
        _grave=judged["label"].map(LABELS.index),
        _bits=judged["dtype"].map(_bits),
        _tensor=judged["tensor"].map(ALL_TENSORS.index),
    )
    rows = []
    for _, same in order[order["label"] != ROUNDING].groupby(["_grave", "named", "_tensor", "_bits", "rule"]):
        last = same.sort_values("world_size").iloc[-1]
        sizes = ", ".join(map(str, sorted(same["world_size"].unique())))
        numbers = scientific(last["error_rel"]), ratio(last["x_single_device"]), signed(last["slope"])
        rows.append(cells(*last[["named", "tensor", "dtype"]], sizes, *last[["label", "rule", "sentence"]], *numbers))
    head = (
        "variant", "tensor", "dtype", "world size", "label", "rule", "evidence", "error", "x single device", "slope",
    )  # fmt: skip
    left = len(rows) - MOST_FINDINGS
    more = f", the first {MOST_FINDINGS}; {left} more" if left > 0 else ""
    caption = f"What is not mere rounding{more} (numbers of the largest world size)"
    return Table(caption, head, tuple(rows[:MOST_FINDINGS]))


def zigzag_cases(results: pd.DataFrame) -> pd.DataFrame:
    """The first row, by id, of each case of several ranks whose chunks are told apart: of the most frequent inputs."""
    zigzag = results[(results["sharding"] == "zigzag") & (results["rank"] == -1) & (results["world_size"] > 1)]
    return zigzag[zigzag["inputs"].isin(zigzag["inputs"].mode()[:1])].drop_duplicates("case_id").set_index("case_id")


def _chunks(results: pd.DataFrame, positions: pd.DataFrame) -> Table | None:
    """Under zigzag, the two chunks of each rank apart: the front one and its mirror from the back."""
    cases = zigzag_cases(results)
    bins = positions.join(cases[["variant", "dtype", "world_size", "seqlen", "inputs"]], on="case_id", how="inner")
    if bins.empty:
        return None
    bins = bins[bins["world_size"] == bins["world_size"].max()]
    bins = bins.assign(back=bins["token_begin"] >= bins["seqlen"] / 2)
    means = bins.groupby(["variant", "dtype", "tensor", "back"], sort=True)["error_rms"].mean().unstack("back")
    order = sorted(means.index, key=lambda key: (key[0], _bits(key[1]), ALL_TENSORS.index(key[2])))
    rows = tuple(
        cells(*key, scientific(front), scientific(back), ratio(back / front if front > 0 else None))
        for key, front, back in means.loc[order].itertuples(name=None)
    )
    head = ("variant", "dtype", "tensor", "front chunks", "back chunks", "back / front")
    return Table(f"Zigzag: rms error of the front and the back chunks, {cases['inputs'].iloc[0]} inputs", head, rows)


def _by_step(results: pd.DataFrame, steps: pd.DataFrame) -> Table | None:
    """How far the keys have come, over all ranks: the greatest error of what was computed, and of what was joined."""
    sizes = results.drop_duplicates("case_id").set_index("case_id")["world_size"]
    known = steps[steps["source"] >= 0].join(sizes, on="case_id")
    size = known["world_size"].max()
    if known.empty or size < 2:
        return None
    known = known[known["world_size"] == size]
    known = known.assign(step=(known["rank"] - known["source"]) % known["world_size"])
    profile = known.groupby(["tensor", "state", "step"])["error_rel"].max().unstack("step")
    bands = known.groupby("tensor")["band"].max()
    rows = tuple(
        cells(tensor, state, scientific(bands[tensor]), *map(scientific, profile.loc[(tensor, state)]))
        for tensor in ALL_TENSORS
        for state in ("partial", "running")
        if (tensor, state) in profile.index
    )
    head = ("tensor", "state", "band", *(f"step {number}" for number in profile.columns))
    return Table(f"Greatest relative error by ring step, world size {int(size)}, traced cases", head, rows)


def _traced(steps: pd.DataFrame) -> Table:
    """Traced steps outside of the rounding band, first ones first; where none is, the worst inside."""
    off = steps[~(steps["error_rel"] <= steps["band"])]
    if len(off):
        caption = "Traced steps outside of the rounding band"
        shown = off.sort_values(["way", "step", "rank"], ascending=[False, True, True])
    else:
        caption = "Traced steps: all are inside the band"
        shown = steps.assign(_share=steps["error_rel"] / steps["band"]).nlargest(12, "_share")
    rows = tuple(
        cells(
            *(row[name] for name in ("way", "rank", "step", "tensor", "state")),
            *(f"{row[f'{kind}_begin']} to {row[f'{kind}_last']}" for kind in ("query", "key")),
            *(scientific(row[name]) for name in ("error_rel", "band")),
        )
        for row in shown.head(MOST_STEPS).to_dict("records")
    )
    head = ("way", "rank", "block", "tensor", "state", "queries", "keys", "error", "band")
    return Table(caption, head, rows)


def _account(findings: pd.DataFrame) -> Table:
    """What the traced cases computed, joined or returned otherwise than once."""
    rows = tuple(
        cells(*(row[name] for name in ("way", "rank", "step", "tensor", "finding")), str(int(row["count"])))
        for row in findings.head(MOST_STEPS).to_dict("records")
    )
    return Table("What does not add up", ("way", "rank", "block", "tensor", "finding", "count"), rows)
