"""What forward_faults predicts of rounding and of faults of the forward in a stack, checked against its table."""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from accuracy.results.claim import Claim

GRADIENTS = ("dx", "d_query", "d_key", "d_value", "d_output")
RATIOS = {"ring": (1.05, 1.30), "llama3_ring": (1.00, 1.25), "te_p2p": (1.15, 1.80)}
LONG, LONG_RATIOS = 16_416, {"ring": (1.00, 1.05), "llama3_ring": (0.98, 1.03), "te_p2p": (1.01, 1.20)}
POWER, HEALTHY, CATASTROPHIC = 1.05, 0.1, 0.5


def claims(results: pd.DataFrame) -> list[Claim]:
    if (results["seqlen"] == LONG).all():
        return [*_of_ratios(results, LONG_RATIOS), _of_bottom(results)]
    rows = results[results["seqlen"] == 2080]
    if any(rows.loc[rows["variant"] == name, "seed"].nunique() < 2 for name in (*RATIOS, "merge_overflow")):
        return [Claim("Every healthy variant is measured on five seeds.", None, "fewer than two seeds")]
    return [*_of_ratios(rows, RATIOS), *_of_faults(results, rows), *_of_depth(results[results["seqlen"] == 128])]


def answer(results: pd.DataFrame) -> list[Claim]:
    """Return the claims of the README's Answer, as this table judges them."""
    return claims(results)


def _ratio(rows: pd.DataFrame, variant: str) -> tuple[float, float, float]:
    """Over single device, with the ends of its 95% interval over seeds."""
    mine = rows[(rows["variant"] == variant) & rows["tensor"].isin(GRADIENTS) & (rows["world_size"] == 8)]
    logs = np.log(mine["x_single_device"]).groupby(mine["seed"]).mean()
    if len(logs) < 2:
        return math.nan, math.nan, math.nan
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    return tuple(math.exp(x) for x in (logs.mean(), logs.mean() - half, logs.mean() + half))  # type: ignore[return-value]


def _of_ratios(rows: pd.DataFrame, ranges: dict[str, tuple[float, float]]) -> Iterator[Claim]:
    """Of one length: power, ratios, healthy gradients, and a merge that may overflow."""
    found = {name: _ratio(rows, name) for name in (*ranges, "merge_overflow")}
    said = ", ".join(f"{name} {mean:.3f} ({low:.3f} to {high:.3f})" for name, (mean, low, high) in found.items())
    widest = max(high / mean for mean, _, high in found.values())
    yield Claim("A ratio's 95% interval over seeds is within 5% of it.", widest < POWER, f"at most {widest - 1:.1%}")
    means = {name: mean for name, (mean, _, _) in found.items()}
    within = all(low <= means[name] <= high for name, (low, high) in ranges.items())
    order = means["ring"] < means["te_p2p"] and (ranges is LONG_RATIOS or means["llama3_ring"] < means["ring"])
    expected = ", ".join(f"{name} {low:.2f} to {high:.2f}" for name, (low, high) in ranges.items())
    less = "" if ranges is LONG_RATIOS else ", llama3_ring less"
    yield Claim(f"{expected}; te_p2p more than ring{less}.", order and within, said)
    worst = float(rows.loc[rows["variant"].isin(ranges) & rows["tensor"].isin(GRADIENTS), "error_rel"].max())
    yield Claim("No gradient of a healthy variant is off by 0.1.", worst < HEALTHY, f"at most {worst:.3f}")
    apart = abs(means["merge_overflow"] / means["ring"] - 1)
    yield Claim("A merge that may overflow is within 5% of ring at trained logits.", apart < 0.05, f"{apart:.1%}")


def _of_faults(results: pd.DataFrame, rows: pd.DataFrame) -> Iterator[Claim]:
    sharp = results[results["gain"] == 8]
    broken = bool((sharp["status"] == "failed").all()) and len(sharp) > 0
    reason = str(sharp["reason"].iloc[0]) if len(sharp) else "not measured"
    yield Claim("At gain 8 its values are not finite.", broken, reason)
    loss = rows[rows["tensor"] == "loss"].set_index("variant")["error_rel"]
    padded = float(loss["lse_padded"].min())
    yield Claim("lse beside its padding spoils the loss by 1% and more.", padded > 0.01, f"at least {padded:.2g}")
    partial = rows[(rows["variant"] == "partial_lse") & (rows["tensor"] == "dx") & (rows["layer"] == 1)]
    many = float(partial.loc[partial["world_size"] == 8, "error_rel"].min())
    alone = float(partial.loc[partial["world_size"] == 1, "x_single_device"].max())
    off = _loss_apart(rows)
    held = off < 1e-4 and many > CATASTROPHIC and alone < 1.5
    evidence = f"loss {off:.1g} from ring's, gradient off by {many:.2g} and more, one rank {alone:.2f} times"
    statement = "A rank's own lse kept for the backward: loss as ring's, gradients off by half, one rank right."
    yield Claim(statement, held, evidence)


def _loss_apart(rows: pd.DataFrame) -> float:
    """How far the loss with a rank's own lse is from ring's, at most."""
    values = rows[rows["tensor"] == "loss"].pivot_table(index="seed", columns="variant", values="value")
    return float((values["partial_lse"] / values["ring"] - 1).abs().max())


def _of_bottom(rows: pd.DataFrame) -> Claim:
    bottom = rows[(rows["tensor"] == "dx") & (rows["layer"] == 1)].groupby("variant")["error_rel"].min()
    off, least = _loss_apart(rows), float(bottom[["lse_padded", "partial_lse"]].min())
    statement = "Padded lse and a rank's own lse spoil the bottom gradient; with a rank's own the loss is ring's."
    return Claim(statement, off < 1e-4 and least > CATASTROPHIC, f"loss {off:.1g} off, gradient off by {least:.2g}")


def _of_depth(rows: pd.DataFrame) -> Iterator[Claim]:
    statement = (
        "d_query differs from single device by less than 0.2 at gains 0.25 and 1; at 2 by 0.5 (24 layers), 0.9 (128)."
    )
    query = rows[rows["tensor"] == "d_query"]
    if query.empty:
        yield Claim(statement, None, "not measured")
        return
    by = query.groupby(["gain", "layers"])[["diff_rel", "exact_diff_rel"]].median()
    said = "; ".join(
        f"gain {gain:g}, {layers} layers: ring {ring:.2g}, exact {exact:.2g}" for (gain, layers), (ring, exact) in
        zip(by.index, by.to_numpy(), strict=True)
    )  # fmt: skip
    usual = by.loc[[0.25, 1.0], "diff_rel"].max() < 0.2
    sharp = by.loc[(2.0, 24)].min() > 0.5 and by.loc[(2.0, 128)].min() > 0.9
    yield Claim(statement, bool(usual and sharp), said)
