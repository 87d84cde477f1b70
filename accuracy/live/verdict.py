"""What do the numbers of a captured run say: rounding, or which layer, tensor and rank left it first?

In: a table, a row for each call, tensor and rank. Out: a label for each row (`accuracy.verdict.label`) and a sentence
for all. Forward comes before backward, and backward begins at the last layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core.dtype import FORMATS, PRODUCTS
from accuracy.core.number import count, listed, on_ranks, plain
from accuracy.results.table import ALL_RANKS
from accuracy.verdict.floor import WITHIN, WITHIN_GRADIENT, coarser_format
from accuracy.verdict.label import EXCESS_ROUNDING, INVALID, LOGIC, NOT_MEASURED, PRECISION_FLOOR, ROUNDING
from accuracy.verdict.rule.factor import MOST_OF_IT

FAR = 4.0  # times the most that rounding makes: no rounding more or less explains that
FORWARD = ("out", "lse")
BACKWARD = ("dv", "dk", "dq")
GIVEN = "was given"  # how the sentence of a tensor begins whose inputs are not finite: no fault of the attention
INSIDE = {
    "": "", "float32": " to float32", "tf32": " to TF32", "tf32_cut": " to TF32, cut off,", "split_16": " to 16 bits",
}  # fmt: skip
"""What a float64 call's results are held to, and a float32 call's whose out shows products of such operands."""
SHORT = 11  # bits: of an lse that some function of 16-bit inputs rounded; a healthy one has float32's


@dataclass(frozen=True)
class Judgement:
    """rows: one for each call, tensor and rank (-1: all ranks), as they were computed; sentence: what they show
    together, rounding, or what left it first; label: the gravest; first: the row that left rounding first, None: none
    did."""

    rows: pd.DataFrame
    sentence: str
    label: str
    first: Mapping[str, Any] | None = None
    folder: Path = Path()

    @property
    def healthy(self) -> bool:
        """Return whether something was judged and nothing but rounding was found."""
        return self.label == ROUNDING

    def raise_if_faulty(self) -> None:
        """Raises AssertionError with the sentence where the run is not healthy."""
        if not self.healthy:
            raise AssertionError(self.sentence)


def label_of(
    row: Mapping[str, Any], ranks: np.ndarray, explained: Callable[[str], bool] = lambda dtype: True
) -> tuple[str, str]:
    """(label, sentence) of one row; ranks: the relative errors of all ranks; explained: whether rounding to a coarser
    dtype can make each of the errors."""
    if row["nonfinite"]:
        return INVALID, f"{int(row['nonfinite'])} values are not finite"
    effective = "float32" if row["tensor"] == "lse" and row["dtype"] != "float64" else row["dtype"]
    coarse = row["tensor"] == "lse" and 0 < row["significand_bits"] <= SHORT
    if max(row["times"], row["times_row"], row["times_gain"]) <= 1 and not row["beyond"] and not coarse:
        return ROUNDING, f"{plain(row['times'])} times what rounding{INSIDE[row['inside']]} explains"
    most = WITHIN_GRADIENT if row["tensor"] in BACKWARD else WITHIN
    found = coarser_format(row["error_rel"], row["significand_bits"], ranks, effective, row["struck"], most)
    is_factor = row["times_gain"] > 1 and not (found and row["certain_gain"] <= FORMATS[found[0]].unit_roundoff)
    alone = max(row["times"], row["times_row"]) <= 1 and not row["beyond"]
    if is_factor and (alone or abs(row["error_gain"]) >= MOST_OF_IT * row["error_rel"]):
        return LOGIC, f"it is {1 + row['error_gain']:.6g} times the reference, {_far(row)}"
    if found and (not row["beyond"] or explained(found[0])):
        return PRECISION_FLOOR, f"only as good as {found[0]}: {found[1]}"
    if row["beyond"]:
        elements = f"{int(row['beyond'])} element{'s' * int(row['beyond'] > 1)}"
        return LOGIC, f"{elements} that no rounding explains, proven wrong; {_far(row)}"
    return LOGIC if max(row["times"], row["times_row"]) > FAR else EXCESS_ROUNDING, _far(row)


def verdict(rows: pd.DataFrame) -> Judgement:
    """Of a run's rows."""
    judged = rows[rows["label"] != NOT_MEASURED]
    if judged.empty:
        return Judgement(rows, f"nothing could be judged: {rows['sentence'].iloc[0]}", NOT_MEASURED)
    off = judged[judged["label"] != ROUNDING]
    of_ranks = off[off["rank"] != ALL_RANKS]
    wrong = in_time(of_ranks if len(of_ranks) else off)
    left = rows[rows["label"] == NOT_MEASURED]
    more = f" Not judged: {left['name'].iloc[0]} ({left['sentence'].iloc[0]}), {len(left)} in all." if len(left) else ""
    if wrong.empty:
        calls = f"{count(judged['layer'].nunique(), 'layer')}, {judged['name'].nunique()} calls"
        most = f"every tensor within {plain(judged['times'].max())} times what rounding explains"
        coarser = judged[judged["inside"].isin(PRODUCTS)].groupby("inside")["layer"].unique()
        facts = "".join(f" {_few([*layers])}: {PRODUCTS[str(name)]}." for name, layers in coarser.items())
        return Judgement(rows, f"the run merely rounds: {calls}, {most}.{facts}{more}", ROUNDING)
    first = wrong.iloc[0]
    if first["sentence"].startswith(GIVEN):
        return Judgement(rows, f"{_given(wrong, first)}{more}", first["label"], dict(first))
    same = wrong[(wrong["name"] == first["name"]) & (wrong["tensor"] == first["tensor"])]
    size = first["world_size"]
    there = f" {on_ranks(sorted(same['rank'].unique()))} of {size}" if size > 1 else ""
    where = f"{first['tensor']} of {first['layer']} in step {first['step']}{there}"
    batch, token, head = (int(first[f"worst_{name}"]) for name in ("batch", "token", "head"))
    place = f"the most at batch {batch}, token {token}, head {head}"
    text = f"{where} leaves rounding first ({first['label'].replace('_', ' ')}): {first['sentence']}, {place}."
    sentence = f"{text} {_others(wrong, first, judged)}{more}".strip()
    return Judgement(rows, sentence, first["label"], dict(first))


def _given(wrong: pd.DataFrame, first: pd.Series) -> str:
    """What made its inputs is before the layer; what is wrong with finite inputs."""
    given = wrong["sentence"].str.startswith(GIVEN)
    layers = [name for name in dict.fromkeys(wrong.loc[given, "layer"]) if name != first["layer"]]
    more = f", as {_few(layers)}" if layers else ""
    text = (
        f"{first['layer']} in step {first['step']} {first['sentence']}{more}: what made them is before the attention."
    )
    for _, other in wrong[~given].head(1).iterrows():
        text += f" {other['tensor']} of {other['layer']} is wrong with finite inputs: {other['sentence']}."
    return text


def in_time(rows: pd.DataFrame) -> pd.DataFrame:
    """In the order in which a training step computes them."""
    backward = rows["tensor"].isin(BACKWARD)
    order = rows.assign(
        _back=backward, _call=rows["order"].where(~backward, -rows["order"]),
        _tensor=rows["tensor"].map([*FORWARD, *BACKWARD].index),
    )  # fmt: skip
    keys = ["step", "_back", "_call", "_tensor", "rank"]
    return order.sort_values(keys, kind="stable").drop(columns=["_back", "_call", "_tensor"])


def _far(row: Mapping[str, Any]) -> str:
    whole = f"{plain(row['times'])} times what rounding explains"
    if row["times"] > 1 or row["times_row"] <= 1:
        return f"{whole}, relative error {row['error_rel']:.2g}"
    return f"a row {plain(row['times_row'])} times what rounding explains, the whole {plain(row['times'])}"


def _others(wrong: pd.DataFrame, first: pd.Series, judged: pd.DataFrame) -> str:
    """The other tensors of that layer, the other layers, and how often."""
    same = wrong[wrong["layer"] == first["layer"]]
    tensors = [name for name in dict.fromkeys(same["tensor"]) if name != first["tensor"]]
    layers = [name for name in dict.fromkeys(wrong["layer"]) if name != first["layer"]]
    healthy = judged["layer"].nunique() - len(layers) - 1
    steps, all_steps = same["step"].nunique(), judged.loc[judged["layer"] == first["layer"], "step"].nunique()
    parts = [
        f"wrong too: {listed(tensors)} of that layer" if tensors else "",
        f"wrong in {_few(layers)} too" if layers else "",
        f"in {steps} of {all_steps} captured steps" if steps < all_steps else "",
        count(healthy, "other layer merely rounds", "other layers merely round") if healthy else "",
    ]
    text = "; ".join(filter(None, parts))
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _few(names: list[str]) -> str:
    return f"{', '.join(names[:4])} and more" if len(names) > 4 else listed(names)
