"""What calibration claims: published numbers, how near ours come, and what makes them differ.

Every claim about flash attention is made of each kernel apart; where a table lacks the kernel it is not measured.
"""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from accuracy.claim import Claim

FLASH = ("flash_attn", "torch_flash", "eager")  # scores, sums and products in float32, P rounded before P V
SIXTEEN = "eager in 16 bits"  # every step rounded, the product P V too, before it is divided
UNFUSED = ("torch_math", SIXTEEN)

FA3_BASELINE, FA3_FLASH = 3.2e-4, 1.9e-4  # RMSE in float16: arXiv 2407.08608, table 3
GOLDEN = 10  # flash's deviation over the baseline's in bfloat16: arXiv 2405.02803, abstract
PR34_OUT = (5.436e-5, 1.0681e-4, 8.917e-5, 7.772e-5, 7.010e-5, 6.390e-5, 5.937e-5, 5.579e-5)  # mean diff, ranks 0 to 7
PR34_LSE_MAX = 9.5367e-7  # of every rank that was read
HALF_TIE = 2.0**-9
"""Mean error of out where two values of [1, 2) with 8 bits are added in 8 bits and halved: of their sums, every second
lies between two numbers, 2^-7 from each, and all of those go outward."""


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["status"] == "ok") & results["tensor"].notna()].copy()
    in_sixteen = rows["kernel_options"].str.contains("compute_dtype=input", regex=False)
    rows["who"] = rows["kernel"].mask(in_sixteen, SIXTEEN)
    whole = rows[rows["rank"] == -1]
    out = whole[whole["tensor"] == "out"]
    return [
        *_rmse(out[out["inputs"] == "outliers"]),
        *_deviation(out[(out["inputs"] == "gaussian") & (out["variant"] == "one_shot")]),
        *_delta(whole[whole["variant"] == "one_shot"]),
        *_one_value(out[out["inputs"] == "one_value"]),
        *_by_rank(rows[(rows["variant"] == "ring") & (rows["world_size"] == 8)]),
    ]


def _rmse(rows: pd.DataFrame) -> Iterable[Claim]:
    """FlashAttention-3's table in float16."""
    unscaled = rows["softmax_scale"] == 1
    size = ["seqlen", "head_dim"]
    means, without = (rows[each].groupby([*size, "who"])["error_rms"].mean() for each in (~unscaled, unscaled))
    published = FA3_BASELINE / FA3_FLASH
    for kernel in FLASH:
        ratios = _over(means, UNFUSED, kernel)
        yield _judged(
            f"FlashAttention-3: unfused float16 has {published:.2f} times the RMSE of {kernel}, within 25%, at every size.",
            ratios, lambda found: found.between(0.75 * published, 1.25 * published),
        )  # fmt: skip
    flash, flash_without = (each[each.index.get_level_values("who").isin(FLASH)] for each in (means, without))
    yield _judged(
        f"At the usual scale flash's RMSE is less than half of the published {FA3_FLASH:g} at every size.",
        flash, lambda found: found < FA3_FLASH / 2,
    )  # fmt: skip
    yield _judged(
        f"Without a scale (one key a row) flash's RMSE is {FA3_FLASH:g} within 25%.",
        flash_without, lambda found: found.between(0.75 * FA3_FLASH, 1.25 * FA3_FLASH),
    )  # fmt: skip
    yield _judged(
        "But then the unfused RMSE is more than 3 times that.",
        pd.concat([_over(without, UNFUSED, kernel) for kernel in FLASH]), lambda found: found > 3,
    )  # fmt: skip


def _deviation(rows: pd.DataFrame) -> Iterable[Claim]:
    """Golden et al.: the largest deviation in bfloat16."""
    means = rows[rows["kernel"] != "chunked"].groupby("who")["error_max"].mean()
    for kernel in FLASH:
        yield _judged(
            f"Golden: {kernel} deviates less than the unfused form in bfloat16, not {GOLDEN} times as much.",
            1 / _over(means, UNFUSED, kernel), lambda found: found < 1,
        )  # fmt: skip
    tiles = rows[rows["kernel"] == "chunked"].copy()
    tiles["sums"] = tiles["kernel_options"].str.extract(r"accumulator_dtype=(\w+)")
    tiles["tile"] = tiles["kernel_options"].str.extract(r"key_chunk=(\d+)").astype(float)
    found = tiles.groupby(["sums", "tile"])["error_max"].mean() / means.get("torch_math", math.nan)
    low, full = (found[found.index.get_level_values("sums") == sums].dropna() for sums in ("input", "accumulate"))
    yield _judged(
        f"With running sums in bfloat16 and tiles of 16 keys it is {GOLDEN} times as much, within a factor of 2.",
        low[low.index.get_level_values("tile") == 16], lambda each: each.between(GOLDEN / 2, GOLDEN * 2),
    )  # fmt: skip
    falls = low.droplevel("sums").sort_index().pct_change().dropna() + 1
    yield _judged("With such sums larger tiles deviate less.", falls, lambda each: each < 1)
    yield _judged("The same tiles with float32 sums deviate less than the unfused form.", full, lambda each: each < 1)


def _delta(rows: pd.DataFrame) -> Iterable[Claim]:
    """Qiu and Yao: rounding of out, and with it of delta, to one side. Means over seeds, outward of the truth."""
    tied = rows[(rows["inputs"] == "tied") & (rows["dtype"] == "bfloat16")]
    expected = {"out": HALF_TIE, "delta": HALF_TIE * math.sqrt(2 * tied["head_dim"].max() / math.pi)}
    found = tied.groupby(["tensor", "who"])["error_outward"].mean()
    share = pd.concat([found.get(tensor, pd.Series(dtype=float)) / each for tensor, each in expected.items()],
                      keys=list(expected), names=["tensor"])  # fmt: skip
    by_kernel = share.index.get_level_values("who")
    yield _judged(
        "Qiu and Yao: where P V is rounded before it is divided, out and delta are biased outward, by 2^-9 and by"
        " 2^-9 sqrt(2 D / pi), within 25%.",
        share[by_kernel == SIXTEEN], lambda each: each.between(0.75, 1.25),
    )  # fmt: skip
    for kernel in FLASH:
        yield _judged(
            f"{kernel}, which divides in float32, has less than a tenth of that bias.",
            share[by_kernel == kernel], lambda each: each.abs() < 0.1,
        )  # fmt: skip
    control = rows[(rows["inputs"] == "gaussian") & (rows["who"] == SIXTEEN) & rows["tensor"].isin(expected)]
    yield _judged(
        "On Gaussian inputs the same roundings have no side: a mean below a tenth of the mean error.",
        control.groupby("tensor")["error_outward"].mean() / control.groupby("tensor")["error_mean"].mean(),
        lambda each: each.abs() < 0.1,
    )  # fmt: skip


def _one_value(rows: pd.DataFrame) -> Iterable[Claim]:
    """Flash-attention PR #2721: V = 1."""
    stored = rows[rows["dtype"] == "bfloat16"].groupby(["who", "softmax_scale"])[["error_bias", "error_mean"]].mean()
    off = stored[stored["error_mean"] > 0]
    for kernel in ("flash_attn", "flash_attn_4", "torch_flash", "eager"):
        mine = off[off.index.get_level_values("who") == kernel]
        yield _judged(
            f"PR #2721, V = 1: wherever {kernel} does not store 1 in bfloat16, it stores less.",
            mine["error_bias"] / mine["error_mean"], lambda each: each == -1,
        )  # fmt: skip
    before = rows[rows["dtype"] == "float32"]
    rounded = before["kernel_options"].str.contains("probability_dtype=bfloat16", regex=False)
    means = before[rounded].groupby("softmax_scale")[["error_bias", "error_rms"]].mean()
    yield _judged(
        "Before out is rounded, P in bfloat16 over the sum of P in float32 has no side: a mean below a tenth of the rms.",
        means["error_bias"] / means["error_rms"], lambda each: each.abs() < 0.1,
    )  # fmt: skip
    exact = before[~rounded].groupby("softmax_scale")["error_max"].max()
    yield _judged("With P unrounded out is 1 to 1e-6.", exact, lambda each: each < 1e-6)


def _by_rank(rows: pd.DataFrame) -> Iterable[Claim]:
    """Ring-flash-attention PR #34: mean diff from one-shot on 8 ranks."""
    ranks = rows[rows["rank"] >= 0]
    for kernel in ("flash_attn", "eager"):
        mine = ranks[ranks["who"] == kernel]
        out = mine[mine["tensor"] == "out"].groupby("rank")["diff_mean"].mean()
        ratio = out / pd.Series(PR34_OUT).reindex(out.index)
        yield _judged(
            f"PR #34, {kernel}: the mean diff of out on ranks 1 to 7 is the published one within 10%.",
            ratio[ratio.index > 0], lambda each: each.between(0.9, 1.1),
        )  # fmt: skip
        lse = mine[mine["tensor"] == "lse"].groupby("rank")["diff_max"].max() / PR34_LSE_MAX
        yield _judged(
            f"PR #34, {kernel}: the largest diff of lse is the published one within a factor of 2 on ranks 1 to 7.",
            lse[lse.index > 0], lambda each: each.between(0.5, 2),
        )  # fmt: skip
    first = ranks[(ranks["rank"] == 0) & (ranks["tensor"] == "out")].groupby("who")["diff_mean"].mean() / PR34_OUT[0]
    yield _judged(
        "PR #34: rank 0, which merges nothing, differs as published with flash_attn, within 25%.",
        first[first.index == "flash_attn"], lambda each: each.between(0.75, 1.25),
    )  # fmt: skip
    yield _judged(
        "With eager, which cuts no keys into parts, rank 0 has less than a tenth of that.",
        first[first.index == "eager"], lambda each: each < 0.1,
    )  # fmt: skip


def _over(means: pd.Series, above: Iterable[str], below: str) -> pd.Series:
    """Means of each of `above` over those of `below`, at every size that has both."""
    by_who = means.unstack("who") if means.index.nlevels > 1 else means.to_frame().T
    if below not in by_who:
        return pd.Series(dtype=float)
    return by_who[[name for name in above if name in by_who]].div(by_who[below], axis=0).stack()


def _judged(statement: str, found: pd.Series, test: object) -> Claim:
    """Whether all numbers pass; the evidence is their range, and of what the extremes are."""
    found = found.dropna()
    if found.empty:
        return Claim(statement, None, "not measured")
    holds = bool(np.all(test(found)))  # type: ignore[operator]
    low, high = (f"{found.loc[at]:.3g} ({_text(at)})" for at in (found.idxmin(), found.idxmax()))
    return Claim(statement, holds, low if low == high else f"from {low} to {high}")


def _text(at: object) -> str:
    return ", ".join(map(str, at)) if isinstance(at, tuple) else str(at)
