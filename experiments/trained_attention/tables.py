"""The numbers of README.md, from the published table of its script."""

import runpy
from pathlib import Path

import pandas as pd
from scipy.special import stdtrit

from experiments.published import Tables, markdown

CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
NAME = "trained_attention/gpu.csv.gz"
BLOCKS = (
    "state", "growth", "gradients", "losses", "made", "ring", "inputs", "errors", "floors", "rows", "worst_rows", "claims",
)  # fmt: skip
ORDER = ("Gaussian", "sink", "heavy channels", "sink, heavy channels", "outliers")
TENSORS = ("out", "dq", "dk", "dv")


def blocks(tables: Tables) -> dict[str, str]:
    if not (tables.reports / NAME).exists():
        return dict.fromkeys(BLOCKS, "Not measured yet.")
    return of(tables.csv(NAME))


def of(rows: pd.DataFrame) -> dict[str, str]:
    """rows: the script's table."""
    found, most = CLAIMS["by_seed"](rows), rows["world_size"].max()
    losses = rows[rows["inputs"] == "trained"].groupby("step")["loss"].mean()
    kernel, device = rows["kernel"].dropna().iloc[0], rows["device"].iloc[0]
    shown = _texts(found, "x_worst_rank").str.cat(found["x"].groupby(CLAIMS["KEYS"]).mean().map(" ({:.2f})".format))
    te = found["x_worst_rank"].groupby(CLAIMS["KEYS"]).mean()
    te = te.xs("te_p2p", level="variant").xs(most, level="world_size")
    at = te.xs("out", level="tensor")
    own = rows.loc[(rows["inputs"] == "trained") & (rows["step"] == rows["step"].max())].groupby("seed")["loss"].first()
    by_input = te.unstack("what")
    grown = [f"{by_input.loc[x, 'trained, last']:.1f} ({by_input.loc[x, 'Gaussian']:.1f})" for x in TENSORS[1:]]
    ring = found["x"].groupby(CLAIMS["KEYS"]).mean().xs("ring", level="variant").xs((most, "out"), level=[1, 2])
    judged = CLAIMS["claims"](rows)
    return {
        "state": f"{rows['seed'].nunique()} seeds, {device}, kernel {kernel}, torch {rows['torch'].iloc[0]}; text of Python"
        f" {rows['python'].iloc[0]}. The loss of other text falls from {losses.iloc[0]:.2f} to {losses.iloc[-1]:.2f} nats a byte.",
        "growth": f"{at['trained, last']:.1f} times single device's error of out on the worst of {most} ranks after training,"
        f" {at['trained, first']:.1f} before, {at['Gaussian']:.1f} on Gaussian inputs",
        "gradients": f"{grown[0]} in dq, {grown[1]} in dk and {grown[2]} in dv",
        "losses": ", ".join(f"{loss:.2f}" for loss in sorted(own)),
        "made": f"{at['sink']:.0f} with a sink and {at['outliers']:.0f} with outliers",
        "ring": f"{ring['trained, first']:.2f} to {ring['trained, last']:.2f} times over all ranks together",
        "inputs": _inputs(rows),
        "errors": _table(shown, ("ring", "zigzag", "llama3", "te_p2p"), TENSORS),
        "floors": _table(_texts(found, "x_floor"), ("ring", "te_p2p"), TENSORS),
        "rows": _table(_rows(found, "999"), ("ring", "te_p2p"), TENSORS),
        "worst_rows": _table(_rows(found, "worst"), ("ring", "te_p2p"), TENSORS),
        "claims": "\n".join(f"- {each.line}" for each in judged),
    }  # fmt: skip


def _texts(found: pd.DataFrame, column: str) -> "pd.Series[str]":
    """The mean over seeds and half of its 95% interval (Student's t)."""
    seeds = found[column].groupby(CLAIMS["KEYS"]).agg(["mean", "std", "count"])
    half = stdtrit((seeds["count"] - 1).clip(lower=1), 0.975) * seeds["std"] / seeds["count"] ** 0.5
    return seeds["mean"].map("{:.2f}".format) + half.map(" ± {:.2f}".format)


def _rows(found: pd.DataFrame, at: str) -> "pd.Series[str]":
    """A row's error in percent, and over single device's."""
    ratio = _texts(found, "x_row" if at == "worst" else f"x_{at}")
    return _texts(found.assign(percent=100 * found[f"row_{at}"]), "percent").str.cat(ratio.map(" ({})".format))


def _columns(names: object) -> list[str]:
    """The inputs in their order: made, then trained, first to last."""
    steps = sorted({*names} - {*ORDER}, key=lambda name: (name.endswith("last"), not name.endswith("first")))
    return [*(name for name in ORDER if name in {*names}), *steps]


def _table(texts: "pd.Series[str]", variants: tuple[str, ...], tensors: tuple[str, ...]) -> str:
    found = texts.droplevel("world_size").unstack("what")
    columns = _columns(found.columns)
    lines = [(v, t, *found.loc[(v, t), columns]) for v in variants for t in tensors]
    return markdown(("", "", *columns), lines)


def _inputs(rows: pd.DataFrame) -> str:
    facts = rows[rows["variant"].fillna("") == ""]
    keys = ["inputs", "step", "layer"]
    means = facts.groupby(keys)[["first_key", "largest_key", "largest_score", "largest_channel"]].mean()
    order = sorted(means.index, key=lambda at: (at[1], ORDER.index(at[0]) if at[0] in ORDER else 9, at[2]))
    lines = [
        (name if step < 0 else f"trained, step {step}, layer {layer}", *(f"{x:.{n}f}" for x, n in zip(means.loc[name, step, layer], (3, 2, 1, 2), strict=True)))
        for name, step, layer in order
    ]  # fmt: skip
    head = ("", "weight of the first key", "of the largest", "largest score", "largest channel of keys")
    return markdown(head, lines)
