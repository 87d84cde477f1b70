"""Which implementation of distributed attention is how accurate, at what cost? One table of all published runs.

In: REPORTS/EXPERIMENT/DEVICE/ of each run. Out: a row for each implementation@version and dtype: error over single
device's of out (forward), dq, dk and dv (backward) on the worst rank, at 4 real ranks (2 where no 4 were measured) and
at 64 simulated ones, on the first of KERNELS that was measured; faults that the verdicts of its tables name; time and
memory. Each number leads to its rows in the report that it is from. Gaussian inputs, causal masks, published precision.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from accuracy.core import fields
from accuracy.core.number import MISSING, plain
from accuracy.report.folder import NoReport, read_folder
from accuracy.report.series import with_labels
from accuracy.results.table import ALL_RANKS
from accuracy.verdict.evidence import times_single_device
from accuracy.verdict.label import INVALID, LOGIC, PRECISION_FLOOR
from accuracy.verdict.rows import names_of, with_names
from accuracy.verdict.verdict import verdicts

PAGE = Path(__file__).parent / "page"
ROW = ["implementation", "version", "dtype"]
TENSORS, COSTS = ("out", "dq", "dk", "dv"), {"ms": ("seconds", 1e3), "MiB": ("peak_bytes", 2.0**-20)}
REAL, SIMULATED = "processes", "simulated"
SIZES = {REAL: (4, 2), SIMULATED: (64,)}  # ranks, the first that was measured
COLUMNS = [*((REAL, name) for name in (*TENSORS, *COSTS)), *((SIMULATED, name) for name in TENSORS)]
FAULTS = (INVALID, LOGIC, PRECISION_FLOOR)
KERNELS = ("flash_attn", "flash_attn_4", "torch_flash", "triton_split_backward", "torch_cudnn", "torch_efficient")
DISTRIBUTIONS = {  # of the adapters in accuracy/package, whose modules cannot be imported here
    "ring_flash_attn": "ring-flash-attn", "ring_flash_attn_varlen": "ring-flash-attn", "yunchang": "yunchang",
    "ring_attention_pytorch": "ring-attention-pytorch",
    "ringmaster": "axolotl-ringmaster", "transformer_engine": "transformer_engine", "torch_context_parallel": "torch",
    "torch_context_parallel_public": "torch", "torch_flex_context_parallel": "torch",
}  # fmt: skip
SHAPE = [name for name in fields.names(fields.PROBLEM) if name != "softmax_scale"]
GROUP = [
    *ROW,
    "world",
    "world_size",
    "kernel",
    "page",
    "started",
    "facet",
    "series",
    *SHAPE,
]  # a variant in one problem of one report


class Cell(NamedTuple):
    """A number and where it is from. page: of the report, from the site's root; shows: what its explorer is to show;
    about: the case, in words."""

    value: float
    page: str
    shows: str
    about: str
    note: str = ""

    @property
    def text(self) -> str:
        """The number, and its ranks where they are fewer than the column says."""
        return f"{plain(self.value)}{self.note}"


def leaderboard(reports: Path) -> pd.DataFrame:
    """Indexed by ROW, the worst tensor's error first; COLUMNS hold a Cell or NaN, and ("faults", "") the sorted faults
    in words. Raises NoReport where no run has such rows."""
    measured = list(_measured(reports))
    if not measured:
        raise NoReport(f"{reports}: holds no run over {SIZES[REAL]} real or {SIZES[SIMULATED]} simulated ranks")
    rows = _preferred(pd.concat([rows for rows, _ in measured], ignore_index=True))
    found = [(*key[: len(ROW)], *cell) for key, mine in rows.groupby(GROUP, dropna=False) for cell in _cells(key, mine)]
    long = pd.DataFrame(found, columns=[*ROW, "world", "column", "cell"])
    board = long.pivot(index=ROW, columns=["world", "column"], values="cell").astype(object)
    faults = pd.concat([faults for _, faults in measured]).groupby(ROW)["text"].agg(lambda texts: sorted({*texts}))
    board["faults", ""] = [", ".join(faults.get(key, ())) for key in board.index]
    worst = [tuple(_worst(board.loc[key], world) for world in SIZES) for key in board.index]
    return board.iloc[sorted(range(len(board)), key=worst.__getitem__)]


def write_leaderboard(reports: Path, path: Path) -> pd.DataFrame:
    """Write the page; links are relative to its folder, in which the reports are EXPERIMENT/DEVICE/report.html."""
    board = leaderboard(reports)
    path.write_text(to_html(board), encoding="utf-8")
    return board


def to_html(board: pd.DataFrame) -> str:
    """The board as a page of its own: sortable columns, numbers that lead to their report."""
    environment = Environment(loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined)
    columns = [each for each in COLUMNS if each in board.columns]
    rows = [
        {"key": key, "cells": [_cell(board.at[key, each]) for each in columns], "faults": board.at[key, ("faults", "")]}
        for key in board.index
    ]
    heads = [f"{name}, {'4 real' if world == REAL else '64 simulated'}" for world, name in columns]
    return environment.get_template("leaderboard.html.jinja").render(keys=ROW, heads=heads, rows=rows, missing=MISSING)


def _cell(given: object) -> Cell | None:
    return given if isinstance(given, Cell) else None


def _measured(reports: Path) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """The rows of single ranks that may be shown, and the faults, of each run that has some."""
    for path in sorted(reports.glob("*/*/results.parquet")):
        run = read_folder(path.parent)
        labelled = with_labels(with_names(run.results, names_of(run.results)))  # as the report's page has them
        rows = _published(run.results.assign(series=labelled["series"], facet=labelled["facet"]))
        sizes = [
            world in SIZES and size in SIZES[world]
            for world, size in zip(rows["world"], rows["world_size"], strict=True)
        ]
        rows = rows.assign(
            implementation=rows["variant"], version=_versions(rows, run.record), started=str(run.record.get("started")),
            page=f"{path.parent.parent.name}/{path.parent.name}/report.html",
        )  # fmt: skip
        shown = rows[np.array(sizes, dtype=bool) & (rows["rank"] != ALL_RANKS) & rows["tensor"].isin(TENSORS)]
        shown = shown[shown["error_rel"].notna()]
        if len(shown):
            yield (
                shown,
                _faults(
                    rows[rows["variant"].isin({*shown["variant"]}) & (np.array(sizes) | (rows["world_size"] == 1))]
                ),
            )


def _published(results: pd.DataFrame) -> pd.DataFrame:
    """As published, on Gaussian inputs under a causal mask."""
    gaussian = (results["mask"] == "causal") & (results["inputs"] == "gaussian")
    return results[gaussian & (results["precision"].fillna("") == "")]


def _versions(rows: pd.DataFrame, record: Mapping[str, Any]) -> list[str]:
    """Of the package that a variant calls, or of this one."""
    packages = (record.get("provenance") or {}).get("packages") or {}
    own = (record.get("fingerprint") or {}).get("accuracy")
    modules = rows["options"].fillna("").str.extract(r"fn=accuracy\.package\.(\w+)\.")[0]
    return [str((packages.get(DISTRIBUTIONS.get(each)) if each == each else own) or "") for each in modules]


def _preferred(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each implementation, version, dtype and world: most ranks, first kernel, newest run, one problem."""
    groups = rows[GROUP].drop_duplicates()
    few = [SIZES[world].index(size) for world, size in zip(groups["world"], groups["world_size"], strict=True)]
    unlike = [KERNELS.index(name) if name in KERNELS else len(KERNELS) for name in groups["kernel"]]
    order = groups.assign(few=few, unlike=unlike).sort_values("started", ascending=False, kind="stable")
    first = order.sort_values(["few", "unlike"], kind="stable").drop_duplicates([*ROW, "world"])
    return rows.merge(first[GROUP], on=GROUP)


def _cells(key: tuple[Any, ...], mine: pd.DataFrame) -> Iterator[tuple[str, str, Cell]]:
    """(world, column, cell) of a group: the largest of the ranks' errors over single device's on their tokens, mean
    over seeds; on real ranks the fastest case's time and the median of peak memory."""
    case = dict(zip(GROUP, key, strict=True))
    world, size = case["world"], case["world_size"]
    about = f"{case['kernel']}, S {case['seqlen']}, heads {case['heads']}/{case['heads_kv']} of {case['head_dim']}"
    note = f" ({size} ranks)" if size != SIZES[world][0] else ""
    worst = mine.assign(times=times_single_device(mine)).groupby(["tensor", "seed"])["times"].max()
    values = dict(worst.groupby("tensor").mean())
    if world == REAL:
        values |= {"ms": mine["seconds"].min() * 1e3, "MiB": mine["peak_bytes"].median() * 2.0**-20}
    for column, value in values.items():
        if np.isfinite(value):
            tensor = column if column in TENSORS else TENSORS[0]
            shows = urlencode({"facet": case["facet"], "series": case["series"], "tensor": tensor, "world_size": size})
            yield world, str(column), Cell(float(value), case["page"], shows, about, note)


def _faults(rows: pd.DataFrame) -> pd.DataFrame:
    """What the verdicts of a run's rows say is wrong, by ROW."""
    judged = verdicts(rows)
    wrong = judged[judged["label"].isin(FAULTS)]
    versions = dict(zip(rows["variant"], rows["version"], strict=True))
    return pd.DataFrame({
        "implementation": wrong["variant"], "version": wrong["variant"].map(versions), "dtype": wrong["dtype"],
        "text": wrong["tensor"] + ": " + wrong["label"].str.replace("_", " "),
    })  # fmt: skip


def _worst(row: pd.Series, world: str) -> float:
    """The worst tensor's error; infinite without numbers, which come last."""
    found = (_cell(row.get((world, name))) for name in TENSORS)
    return max((each.value for each in found if each is not None), default=float("inf"))
