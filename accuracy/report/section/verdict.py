"""Section: bug or rounding? The verdict of every tensor, the evidence, and the traced steps."""

from dataclasses import dataclass

import pandas as pd

from accuracy.chart.view import Panel, Table, TableCell, cells
from accuracy.core.dtype import FORMATS
from accuracy.core.number import MISSING, plain, ratio, scientific, signed
from accuracy.results.table import TENSORS
from accuracy.verdict.diagnosis import Diagnosis, diagnoses
from accuracy.verdict.label import LABELS, NOT_MEASURED, ROUNDING
from accuracy.verdict.verdict import verdicts

MOST_FINDINGS = 60
MOST_STEPS = 40


@dataclass(frozen=True)
class Judged:
    """The verdicts of a run and what they amount to, gravest variant first."""

    verdicts: pd.DataFrame
    diagnoses: list[Diagnosis]
    panel: Panel | None


def judge(results: pd.DataFrame, positions: pd.DataFrame, steps: pd.DataFrame) -> Judged:
    """Of a whole run."""
    found = verdicts(results)
    measured = found[found["label"] != NOT_MEASURED]
    if measured.empty:
        return Judged(found, [], None)
    said = [each for each in diagnoses(measured, results, steps) if each.label != NOT_MEASURED]
    tables = [_overview(measured), _findings(measured)]
    data = [_by_step(results, steps), _chunks(results, positions), _traced(steps)]
    panel = Panel(
        slug="verdict-all",
        label="Every tensor",
        note="The gravest label over the world sizes; numbers are times the single-device kernel's error.",
        tables=tuple(table for table in tables if table.rows),
        data=tuple(table for table in data if table.rows),
    )
    return Judged(found, said, panel)


def _overview(measured: pd.DataFrame) -> Table:
    """A row per variant and dtype, a column per tensor: the gravest label over world sizes."""
    order = measured.assign(
        _grave=measured["label"].map(LABELS.index), _bits=measured["dtype"].map(lambda name: FORMATS[name].precision)
    )
    rows = []
    for (variant, options, precision, _, dtype), mine in order.groupby(
        ["variant", "options", "precision", "_bits", "dtype"], sort=True
    ):
        name = " · ".join(filter(None, (str(variant), str(options), str(precision))))
        rows.append(cells(name, dtype, *(_label_cell(mine[mine["tensor"] == tensor]) for tensor in TENSORS)))
    return Table("Verdict of every tensor", ("variant", "dtype", *TENSORS), tuple(rows))


def _label_cell(rows: pd.DataFrame) -> TableCell:
    if rows.empty:
        return TableCell(MISSING, kind="absent")
    worst = rows.sort_values(["_grave", "x_single_device"], ascending=[True, False]).iloc[0]
    detail = f"{plain(rows['x_single_device'].max())}" if worst["label"] == ROUNDING else f"W = {worst['world_size']}"
    return TableCell(
        str(worst["label"]), detail, "" if worst["label"] == ROUNDING else "alarm", hint=str(worst["sentence"])
    )


def _findings(measured: pd.DataFrame) -> Table:
    """Everything that is not mere rounding: a row for world sizes with the same label, with the largest's evidence."""
    wrong = measured[measured["label"] != ROUNDING]
    wrong = wrong.assign(
        _grave=wrong["label"].map(LABELS.index),
        _bits=wrong["dtype"].map(lambda name: FORMATS[name].precision),
        _place=wrong["tensor"].map(TENSORS.index),
    )
    rows = []
    for _, same in wrong.groupby(["_grave", "variant", "options", "precision", "_place", "_bits", "rule"], sort=True):
        last = same.sort_values("world_size").iloc[-1]
        sizes = ", ".join(map(str, sorted(same["world_size"].unique())))
        rows.append(
            cells(
                last["variant"], last["tensor"], last["dtype"], sizes, last["label"], last["rule"], last["sentence"],
                scientific(last["error_rel"]), ratio(last["x_single_device"]), signed(last["slope"]),
            )
        )  # fmt: skip
    head = (
        "variant",
        "tensor",
        "dtype",
        "world size",
        "label",
        "rule",
        "evidence",
        "error",
        "x single device",
        "slope",
    )
    left = len(rows) - MOST_FINDINGS
    more = f", the first {MOST_FINDINGS}; {left} more" if left > 0 else ""
    return Table(
        f"What is not mere rounding{more} (numbers of the largest world size)", head, tuple(rows[:MOST_FINDINGS])
    )


def zigzag_cases(results: pd.DataFrame) -> pd.DataFrame:
    """The first row, by id, of each case of several ranks whose chunks are told apart: of the most frequent inputs."""
    zigzag = results[(results["sharding"] == "zigzag") & (results["rank"] == -1) & (results["world_size"] > 1)]
    return zigzag[zigzag["inputs"].isin(zigzag["inputs"].mode()[:1])].drop_duplicates("case_id").set_index("case_id")


def _chunks(results: pd.DataFrame, positions: pd.DataFrame) -> Table:
    """Under zigzag, the two chunks of each rank apart: the front one and its mirror from the back."""
    head = ("variant", "dtype", "tensor", "front chunks", "back chunks", "back / front")
    cases = zigzag_cases(results)
    if cases.empty or positions.empty:
        return Table("Zigzag chunks", head, ())
    inputs = cases["inputs"].iloc[0]
    cases = cases[["variant", "dtype", "world_size", "seqlen"]]
    bins = positions[positions["case_id"].isin(cases.index)].join(cases, on="case_id")
    bins = bins[bins["world_size"] == bins["world_size"].max()]
    bins = bins.assign(back=bins["token_begin"] >= bins["seqlen"] / 2)
    means = bins.groupby(["variant", "dtype", "tensor", "back"], sort=True)["error_rms"].mean().unstack("back")
    order = sorted(means.index, key=lambda key: (key[0], FORMATS[key[1]].precision, TENSORS.index(key[2])))
    rows = tuple(
        cells(*key, scientific(front), scientific(back), ratio(back / front if front > 0 else float("nan")))
        for key, front, back in means.loc[order].itertuples(name=None)
    )
    return Table(f"Zigzag: rms error of the front and the back chunks, {inputs} inputs", head, rows)


def _by_step(results: pd.DataFrame, steps: pd.DataFrame) -> Table:
    """How far the keys have come, over all ranks: the greatest error of what was computed, and of what was joined."""
    head = ("tensor", "state", "band")
    sizes = results.drop_duplicates("case_id").set_index("case_id")["world_size"]
    known = steps[steps["source"] >= 0].join(sizes, on="case_id") if len(steps) else steps
    if known.empty or known["world_size"].max() < 2:
        return Table("Steps", head, ())
    known = known[known["world_size"] == known["world_size"].max()]
    known = known.assign(step=(known["rank"] - known["source"]) % known["world_size"])
    numbers = sorted(known["step"].unique())
    profile = known.groupby(["tensor", "state", "step"])["error_rel"].max()
    bands = known.groupby("tensor")["band"].max()
    rows = tuple(
        cells(tensor, state, scientific(bands[tensor]),
              *(scientific(profile.get((tensor, state, number), float("nan"))) for number in numbers))
        for tensor in TENSORS for state in ("partial", "running") if (tensor, state) in profile.index.droplevel("step")
    )  # fmt: skip
    caption = f"Greatest relative error by ring step, world size {int(known['world_size'].max())}, traced cases"
    return Table(caption, (*head, *(f"step {number}" for number in numbers)), rows)


def _traced(steps: pd.DataFrame) -> Table:
    """Traced steps outside of the rounding band, first ones first; where none is, the worst inside."""
    head = ("way", "rank", "block", "tensor", "state", "queries", "keys", "error", "band")
    if steps.empty:
        return Table("Traced steps", head, ())
    off = steps[~(steps["error_rel"] <= steps["band"])]
    caption = "Traced steps outside of the rounding band" if len(off) else "Traced steps: all are inside the band"
    shown = off.sort_values(["way", "step", "rank"], ascending=[False, True, True]) if len(off) else (
        steps.assign(_share=steps["error_rel"] / steps["band"]).nlargest(12, "_share")
    )  # fmt: skip
    rows = tuple(
        cells(
            row["way"],
            row["rank"],
            row["step"],
            row["tensor"],
            row["state"],
            f"{row['query_begin']} to {row['query_last']}",
            f"{row['key_begin']} to {row['key_last']}",
            scientific(row["error_rel"]),
            scientific(row["band"]),
        )
        for row in shown.head(MOST_STEPS).to_dict("records")
    )
    return Table(caption, head, rows)
