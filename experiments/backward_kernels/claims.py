"""What backward_kernels claims about fused and split backward kernels, checked against its table."""

import pandas as pd

from experiments.claim import Claim

GRADIENTS = ("dq", "dk", "dv")
SPLIT, FUSED, FLASH = "triton_split_backward", "triton_fused_backward", "flash_attn"
ALIKE = 0.02  # of one: 3 seeds of 4096 x 128 values scatter by less than 1 / sqrt(2 * 3 * 524288) = 0.06%


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] == -1) & results["tensor"].isin(GRADIENTS) & (results["status"] == "ok")]
    ours = rows[rows["kernel"].isin((SPLIT, FUSED))]
    atomic = rows[(rows["kernel"] == FLASH) & rows["kernel_options"].str.contains("deterministic=False")]
    fixed = rows[(rows["kernel"] == FLASH) & rows["kernel_options"].str.contains("deterministic=True")]
    fused = ours[ours["kernel"] == FUSED]
    sums = fused[fused["tensor"] != "dq"]
    return [
        _repeats("The split kernels give the same bits in 11 runs.", ours[ours["kernel"] == SPLIT]),
        _repeats("The fused kernel gives the same dk and dv in 11 runs; only dq is added by atomics.", sums),
        _repeats(
            "The fused kernel's dq differs between runs from 8 heads on.", fused[fused["heads"] >= 8], every=False
        ),
        _repeats("flash-attn repeats with deterministic=True.", fixed),
        _repeats("flash-attn's dq differs between runs without.", atomic, every=False),
        _alike(ours),
        _within(ours, fixed),
    ]


def answer(results: pd.DataFrame) -> list[Claim]:
    """Return the claims of the README's Answer, as this table judges them."""
    found = claims(results)
    return [found[0], found[2], found[5]]


def _repeats(statement: str, rows: pd.DataFrame, every: bool = True) -> Claim:
    """Whether the bits are the same in every run; not every: whether dq's differ everywhere."""
    rows = rows if every else rows[rows["tensor"] == "dq"]
    if rows.empty:
        return Claim(statement, None, "no such rows")
    changed = int((rows["repeats_differ"] > 0).sum())
    evidence = f"{changed} of {len(rows)} tensors have elements that changed in any of 10 more runs"
    return Claim(statement, changed == (0 if every else len(rows)), evidence)


def _alike(rows: pd.DataFrame) -> Claim:
    statement = f"Fused and split are equally near to the reference: relative errors within {ALIKE:.0%} of each other."
    mean = rows.groupby(["dtype", "heads", "tensor", "kernel"])["error_rel"].mean().unstack("kernel")
    if mean.shape[1] < 2:
        return Claim(statement, None, "no such rows")
    ratio = (mean[FUSED] / mean[SPLIT] - 1).abs()
    return Claim(statement, bool(ratio.max() < ALIKE), f"largest difference {ratio.max():.3%}")


def _within(ours: pd.DataFrame, flash: pd.DataFrame) -> Claim:
    statement = "Neither is further from the reference than flash-attn in any gradient, by more than 2%."
    keys = ["dtype", "heads", "tensor"]
    theirs = flash.groupby(keys)["error_rel"].mean()
    if theirs.empty or ours.empty:
        return Claim(statement, None, "no such rows")
    ratio = ours.groupby(["kernel", *keys])["error_rel"].mean().div(theirs)
    return Claim(statement, bool(ratio.max() < 1 + ALIKE), f"ratios from {ratio.min():.3f} to {ratio.max():.3f}")
