"""What calibration claims: published numbers, how near ours come, and what makes them differ.

A claim about flash attention is made of each kernel apart; where a table lacks the kernel it is not measured.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from accuracy.results.claim import Claim

Test = Callable[[pd.Series], pd.Series]
AFTER = "(Added after the run.) "
FLASH = ("flash_attn", "torch_flash", "eager")  # scores, sums and products in float32, P rounded before P V
EAGER_16 = "eager in 16 bits"  # every step rounded, the product P V too, before it is divided
UNFUSED = ("torch_math in 16 bits", EAGER_16)

FA3_BASELINE, FA3_FLASH = 3.2e-4, 1.9e-4  # RMSE in float16: arXiv 2407.08608, table 3
GOLDEN = 10  # flash's deviation over the baseline's in bfloat16: arXiv 2405.02803, abstract
PR34_OUT = (5.436e-5, 1.0681e-4, 8.917e-5, 7.772e-5, 7.010e-5, 6.390e-5, 5.937e-5, 5.579e-5)  # mean diff, ranks 0 to 7
PR34_LSE = (9.077e-8, 1.8434e-7, 2.0273e-7, 2.0533e-7, 2.1193e-7, 2.9110e-7)  # ranks 0 to 5, the rest was not at hand
PR34_LSE_MAX = 2.0**-20  # of ranks 0 to 5
HALF_TIE = 2.0**-9
"""Mean error of out where two values of [1, 2) with 8 bits are added in 8 bits and halved: of their sums, every second
lies between two numbers, 2^-7 from each, and all of those go outward."""


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["status"] == "ok") & results["tensor"].notna()].copy()
    in_sixteen = rows["kernel_options"].str.contains("compute_dtype=input|reduced_sums=True")
    rows["who"] = rows["kernel"].mask(in_sixteen, rows["kernel"] + " in 16 bits")
    whole = rows[rows["rank"] == -1]
    single_device = whole[whole["variant"] == "single_device"]
    out = single_device[single_device["tensor"] == "out"]
    return [
        *_rmse(out[out["inputs"] == "outliers"]),
        *_deviation(out[(out["inputs"] == "gaussian") & (out["mask"] == "full")]),
        *_delta(single_device[single_device["dtype"] == "bfloat16"]),
        *_one_value(out[out["inputs"] == "one_value"]),
        *_by_rank(rows[(rows["variant"] == "ring") & (rows["rank"] >= 0)]),
    ]


def _rmse(rows: pd.DataFrame) -> Iterable[Claim]:
    """FlashAttention-3's table in float16."""
    plain, unscaled = rows["inputs_options"].str.contains("rate=0.0,", regex=False), rows["softmax_scale"] == 1
    with_outliers, without, scaled_by_1 = rows[~plain & ~unscaled], rows[plain], rows[unscaled]
    published = FA3_BASELINE / FA3_FLASH
    for kernel in FLASH:
        yield _judged(
            f"FlashAttention-3: unfused float16 has {published:.2f} times {kernel}'s RMSE, within 25%, at every size.",
            _over(with_outliers, "error_rms", UNFUSED, [kernel]), _within(published, 1.25),
        )  # fmt: skip
    yield _judged(
        f"At the usual scale flash's RMSE is less than half of the published {FA3_FLASH:g} at every size.",
        _means(with_outliers, "error_rms", FLASH), lambda found: found < FA3_FLASH / 2,
    )  # fmt: skip
    yield _judged(
        f"Without a scale (one key a row) flash's RMSE is {FA3_FLASH:g} within 25%.",
        _means(scaled_by_1, "error_rms", FLASH), _within(FA3_FLASH, 1.25),
    )  # fmt: skip
    yield _judged(
        "But then the unfused RMSE is more than 3 times that.",
        _means(scaled_by_1, "error_rms", UNFUSED), lambda found: found > 3 * FA3_FLASH,
    )  # fmt: skip
    longer = [each[each["seqlen"] >= 256] for each in (with_outliers, without)]
    raised, usual = (_over(each, "error_rms", UNFUSED, FLASH) for each in longer)
    yield _judged(
        AFTER + "It is the outliers: from 256 tokens on the ratio is larger with them than without, at every size.",
        raised / usual, lambda found: found > 1,
    )  # fmt: skip
    yield _judged(
        AFTER + f"Relative to out, flash's error is {FA3_FLASH:g} within 40% at every size.",
        _means(with_outliers, "error_rel", FLASH), _within(FA3_FLASH, 1.4),
    )  # fmt: skip


def _deviation(rows: pd.DataFrame) -> Iterable[Claim]:
    """Golden et al.: the largest deviation in bfloat16."""
    for kernel in FLASH:
        yield _judged(
            f"Golden: {kernel} deviates less than the unfused form in bfloat16, not {GOLDEN} times as much.",
            _over(rows, "error_max", [kernel], UNFUSED), lambda found: found < 1,
        )  # fmt: skip
    tiles = rows[rows["kernel"] == "chunked"].copy()
    knobs = tiles["kernel_options"].str.extract(r"accumulator_dtype=(?P<sums>\w+),key_chunk=(?P<tile>\d+)")
    tiles["who"] = (
        knobs["sums"].map({"input": "bfloat16", "accumulate": "float32"}) + " sums, tiles of " + knobs["tile"]
    )
    low, full = ([f"{sums} sums, tiles of {tile}" for tile in (16, 64, 256)] for sums in ("bfloat16", "float32"))
    both = pd.concat([rows, tiles])
    in_16 = _over(both, "error_max", low, UNFUSED)
    yield _judged(
        f"With running sums in bfloat16 and tiles of 16 keys it is {GOLDEN} times as much, within a factor of 2.",
        in_16[in_16.index.get_level_values("above") == low[0]], _within(GOLDEN, 2),
    )  # fmt: skip
    falls = [_over(tiles, "error_max", [larger], [smaller]) for smaller, larger in pairwise(low)]
    yield _judged("With such sums larger tiles deviate less.", pd.concat(falls), lambda found: found < 1)
    yield _judged(
        "The same tiles with float32 sums deviate less than the unfused form.",
        _over(both, "error_max", full, UNFUSED), lambda found: found < 1,
    )  # fmt: skip
    yield _judged(
        AFTER + f"Of an unfused form in float32 inside, such sums have {GOLDEN} times the deviation, within a factor"
        " of 2, in tiles of 16 and 64.",
        _over(both, "error_max", low[:2], ["torch_math"]), _within(GOLDEN, 2),
    )  # fmt: skip


def _delta(rows: pd.DataFrame) -> Iterable[Claim]:
    """Qiu and Yao: rounding of out, and with it of delta, to one side. Means over seeds, outward of the reference."""
    tied = rows[rows["inputs"] == "tied"]
    shares = {"out": HALF_TIE, "delta": HALF_TIE * math.sqrt(2 * tied["head_dim"].max() / math.pi)}
    biased = tied[tied["tensor"].isin(shares)]
    biased = biased.assign(share=biased["error_outward"] / biased["tensor"].map(shares).astype(float))
    yield _judged(
        "Qiu and Yao: where P V is rounded before it is divided, out and delta are biased outward, by 2^-9 and by"
        " 2^-9 sqrt(2 D / pi), within 25%.",
        _means(biased, "share", [EAGER_16]), _within(1, 1.25),
    )  # fmt: skip
    for kernel in FLASH:
        yield _judged(
            f"{kernel}, which divides in float32, has less than a tenth of that bias.",
            _means(biased, "share", [kernel]), lambda found: found.abs() < 0.1,
        )  # fmt: skip
    control = rows[(rows["inputs"] == "gaussian") & rows["tensor"].isin(shares)]
    control = control.assign(share=control["error_outward"] / control["error_mean"])
    yield _judged(
        "On Gaussian inputs the same roundings have no side: a mean below a tenth of the mean error.",
        _means(control, "share", [EAGER_16]), lambda found: found.abs() < 0.1,
    )  # fmt: skip
    out, lse = (_means(tied[tied["tensor"] == tensor], "error_bias", FLASH) for tensor in ("out", "lse"))
    yield _judged(
        AFTER + "A flash kernel has that bias if, and only if, its sum of weights is short: lse is biased below by more"
        " than float32's rounding of it.",
        lse, lambda found: (found < -(2.0**-20)) == (out.abs() > 0.1 * HALF_TIE),  # lse is near 20
    )  # fmt: skip


def _one_value(rows: pd.DataFrame) -> Iterable[Claim]:
    """Flash-attention PR #2721: V = 1."""
    before, stored = rows[rows["dtype"] == "float32"], rows[rows["dtype"] == "bfloat16"]
    off = stored[stored["error_max"] > 2.0**-9]  # the reference itself is 1 to float64's rounding
    off = off.assign(side=off["error_bias"] / off["error_mean"])
    for kernel in ("flash_attn", "flash_attn_4", "torch_flash", "eager"):
        yield _judged(
            f"PR #2721, V = 1: wherever {kernel} does not store 1 in bfloat16, it stores less.",
            _means(off, "side", [kernel]),
            lambda found: (found + 1).abs() < 1e-6,
            without="it stores 1 everywhere" if (stored["who"] == kernel).any() else "not measured",
        )
    yield _judged(
        AFTER + "Where P is normalised before it is rounded, and so the largest weight too, what is stored is off, and"
        " less: 9/10 of the mean error are below.",
        _means(off, "side", ["torch_math in 16 bits"]),
        lambda found: found < -0.9,
    )  # fmt: skip
    rounded = before["kernel_options"].str.contains("probability_dtype=bfloat16", regex=False)
    mismatch = before[rounded].assign(side=before["error_bias"] / before["error_rms"])
    yield _judged(
        "Before out is stored, P in bfloat16 over its sum in float32 has no side: a mean below a tenth of the rms.",
        _means(mismatch, "side", ["eager"]), lambda found: found.abs() < 0.1,
    )  # fmt: skip
    exact = _means(before[~rounded], "error_max", ["eager"], "max")
    yield _judged("With P unrounded out is 1 to 1e-6.", exact, lambda found: found < 1e-6)
    yield _judged(
        AFTER + "No eager out is as far from 1 as 2^-9, half a spacing of bfloat16 below 1, before it is stored.",
        _means(mismatch, "error_max", ["eager"], "max"), lambda found: found < 2.0**-9,
    )  # fmt: skip


def _by_rank(rows: pd.DataFrame) -> Iterable[Claim]:
    """Ring-flash-attention PR #34: mean diff from single device on 8 ranks."""
    published = {"out": PR34_OUT, "lse": PR34_LSE}
    rows = rows[(rows["world_size"] == 8) & rows["tensor"].isin(published)]
    known = pd.Series({(tensor, rank): mean for tensor, means in published.items() for rank, mean in enumerate(means)})
    known = known.reindex(pd.MultiIndex.from_frame(rows[["tensor", "rank"]])).to_numpy()
    rows = rows.assign(mean=rows["diff_mean"] / known, most=rows["diff_max"] / PR34_LSE_MAX)[~np.isnan(known)]
    out, lse, first = rows["tensor"] == "out", rows["tensor"] == "lse", rows["rank"] == 0
    for kernel in ("flash_attn", "eager"):
        yield _judged(
            f"PR #34, {kernel}: the mean diff of out on ranks 1 to 7 is the published one within 10%.",
            _means(rows[out & ~first], "mean", [kernel]), _within(1, 1.1),
        )  # fmt: skip
        yield _judged(
            f"PR #34, {kernel}: the largest diff of lse is the published one within a factor of 2 on ranks 1 to 5.",
            _means(rows[lse & ~first], "most", [kernel]), _within(1, 2),
        )  # fmt: skip
        yield _judged(
            AFTER + f"PR #34, {kernel}: the mean diff of lse is the published one within 25% on ranks 1 to 5.",
            _means(rows[lse & ~first], "mean", [kernel]), _within(1, 1.25),
        )  # fmt: skip
    yield _judged(
        "PR #34: rank 0, which merges nothing, differs as published with flash_attn, within 25%.",
        _means(rows[out & first], "mean", ["flash_attn"]), _within(1, 1.25),
    )  # fmt: skip
    others = _means(rows[out & ~first], "diff_mean", ["eager"]).min()
    yield _judged(
        "With eager, which cuts no keys into parts, rank 0 has less than a tenth of that, and of any other rank's.",
        _means(rows[out & first], "diff_mean", ["eager"]), lambda found: found < 0.1 * min(PR34_OUT[0], others),
    )  # fmt: skip


def _means(rows: pd.DataFrame, column: str, names: Sequence[str], of_seeds: str = "mean") -> pd.Series:
    """Over seeds, of each of the names at each length, and at each tensor, rank and so on that there are several of."""
    varying = [key for key in ("tensor", "rank", "head_dim", "softmax_scale") if rows[key].nunique() > 1]
    return rows[rows["who"].isin(names)].groupby(["seqlen", *varying, "who"])[column].agg(of_seeds)


def _over(rows: pd.DataFrame, column: str, above: Sequence[str], below: Sequence[str]) -> pd.Series:
    """Means of each of `above` over those of each of `below`, at every size that has both."""
    means = _means(rows, column, [*above, *below]).rename("x").reset_index()
    sizes = [key for key in means if key not in ("who", "x")]
    pairs = means.merge(means, on=sizes, suffixes=("", "_below"))
    pairs = pairs[pairs["who"].isin(above) & pairs["who_below"].isin(below)]
    pairs = pairs.rename(columns={"who": "above", "who_below": "over"}).set_index([*sizes, "above", "over"])
    return pairs["x"] / pairs["x_below"]


def _within(value: float, factor: float) -> Test:
    return lambda found: found.between(value / factor, value * factor)


def _judged(statement: str, found: pd.Series, test: Test, without: str = "not measured") -> Claim:
    """Whether all numbers pass; the evidence is their range, and of what the extremes are."""
    found = found.dropna()
    if found.empty:
        return Claim(statement, None, without)
    low, high = (f"{found.iloc[at]:.3g} ({_text(found.index[at])})" for at in (found.argmin(), found.argmax()))
    return Claim(statement, bool(test(found).all()), low if low == high else f"from {low} to {high}")


def _text(at: object) -> str:
    parts = at if isinstance(at, tuple) else (at,)
    return ", ".join(f"{part:.3g}" if isinstance(part, float) else str(part) for part in parts)
