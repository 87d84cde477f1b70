"""Which table says each number: see accuracy/report/evidence.py."""

from typing import Any

import pandas as pd

from accuracy.report.evidence import Said, Tables

TABLE, CPU = "calibration/nvidia-h200", "calibration/amd-epyc"
FA3, GOLDEN, QIU = "arXiv 2407.08608, table 3", "arXiv 2405.02803, abstract", "arXiv 2510.04212"
PR34 = "https://github.com/zhuzilin/ring-flash-attention/pull/34"
SCALED_BY_1 = [("reference_rms", "flash_attn"), ("error_rms", "flash_attn")]
UNFUSED = ["eager in 16 bits", "torch_math in 16 bits"]


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = tables.rows(TABLE)
    rows = rows[(rows["status"] == "ok") & rows["tensor"].notna()]
    in_sixteen = rows["kernel_options"].str.contains("compute_dtype=input|reduced_sums=True")
    rows = rows.assign(who=rows["kernel"].mask(in_sixteen, rows["kernel"] + " in 16 bits"))
    single = rows[(rows["rank"] == -1) & (rows["variant"] == "single_device")]
    out = single[single["tensor"] == "out"]
    cases, few, held = tables.cases(TABLE), tables.cases(CPU), tables.held(TABLE)
    return {
        "README.md": [
            Said("{} cases measured, none unsupported, none failed", (cases["ok"],), cases.sum() == cases["ok"]),
            Said("{} of the {} claims that are judged hold.", (sum(held), len(held))),
            Said("(torch 2.13; {} cases measured, {} unsupported;", (few["ok"], few["unsupported"])),
            *_rmse(out[out["inputs"] == "outliers"]),
            *_deviation(out[(out["inputs"] == "gaussian") & (out["mask"] == "full")]),
            *_bias(tables, single[(single["dtype"] == "bfloat16") & (single["inputs"] == "tied")]),
            *_one_value(tables, single[single["inputs"] == "one_value"]),
            *_by_rank(tables, rows[(rows["variant"] == "ring") & (rows["rank"] >= 0) & (rows["world_size"] == 8)]),
        ]
    }  # fmt: skip


def _rmse(rows: pd.DataFrame) -> list[Said]:
    sizes = ["inputs_options", "softmax_scale", "seqlen", "head_dim", "who"]
    means = rows.groupby(sizes)[["error_rms", "error_rel", "reference_rms"]].mean().unstack()
    unscaled = means.xs(1.0, level="softmax_scale").iloc[0]
    means = means[means.index.get_level_values("softmax_scale") != 1.0]
    plain = means.index.get_level_values("inputs_options").str.startswith("rate=0.0,")
    rms = means["error_rms"]
    ratio = rms[UNFUSED].div(rms["flash_attn"], axis=0)
    flash, relative = rms["flash_attn"][~plain], means["error_rel"][~plain]
    size = means["reference_rms", "flash_attn"][~plain]
    away = rms.div(rms["flash_attn"], axis=0).sub(1).abs().max()
    shortest = ratio[~plain].xs((64, 256), level=("seqlen", "head_dim")).min().min()
    return [
        Said("has the same RMSE to 1%,", holds=away["torch_flash"] < 0.01),
        Said("`eager` (P rounded, all else float32) to {:.0%}.", (away["eager"],)),
        Said(
            "| 1.68 | {:.1f} to {:.1f}, growing with the length | outliers make scores of 10 and more,",
            _ends(ratio[~plain]),
            source=FA3,
        ),
        Said("without them {:.1f} to {:.1f}, much", _ends(ratio[plain])),
        Said(
            "| 1.9e-4 | {:.1e} to {:.1e}; *relative to out* {:.1e} to {:.1e} | out is of the size of {:.2f} to {:.2f}",
            (*_ends(flash), *_ends(relative["flash_attn"]), *_ends(size)),
            source=FA3,
        ),
        Said(
            "it is {:.2f} and flash at {:.1e}, but unfused at {:.1e}, not 3.2e-4",
            (*unscaled[SCALED_BY_1], unscaled["error_rms"][UNFUSED].min()),
        ),
        Said("head dim 256: {:.1f}).", (shortest,)),
        Said("near the published 1.9e-4 at every size,", source=FA3),
        Said("the unfused one ({:.0e} to {:.1e}) would", _ends(relative[UNFUSED])),
    ]  # fmt: skip


def _ends(values: Any) -> tuple[float, float]:
    return values.to_numpy().min(), values.to_numpy().max()


def _deviation(rows: pd.DataFrame) -> list[Said]:
    most = rows.groupby("who")["error_max"].mean()
    tiles = rows[rows["who"] == "chunked"]
    knobs = tiles["kernel_options"].str.extract(r"accumulator_dtype=(\w+),key_chunk=(\d+)")
    by_tile = tiles.groupby([knobs[0], knobs[1].astype(int)])["error_max"].mean()
    low, full = by_tile["input"], by_tile["accumulate"]
    flash, unfused, inside = most["flash_attn"], most["torch_math in 16 bits"], most["torch_math"]
    return [
        Said(
            "flash over baseline | 10 | {:.2f} ({:.1e} over {:.1e});",
            (flash / unfused, flash, unfused),
            source=GOLDEN,
        ),
        Said("tiles of 16, 64 and 256 keys {:.1f}, {:.1f} and {:.1f} of an unfused", tuple(low / inside)),
        Said("inside, {:.1f}, {:.1f} and {:.1f} of one in bfloat16", tuple(low / unfused)),
        Said("float32 sums have {:.1f} and {:.2f}.", (full[16] / inside, full[16] / unfused)),
        Said("**Golden's 10** needs", source=GOLDEN),
        Said("the ratio would be {:.1f}.", (low[16] / unfused,)),
    ]


def _bias(tables: Tables, rows: pd.DataFrame) -> list[Said]:
    outward = rows.groupby(["tensor", "who"])["error_outward"].mean()
    flash, rounded = (outward.xs(who, level="who") for who in ("flash_attn", "eager in 16 bits"))
    lse = rows[(rows["tensor"] == "lse") & (rows["who"] == "flash_attn")]["error_bias"].mean()
    cpu = tables.whole(CPU).query("inputs == 'tied' and kernel == 'torch_flash' and dtype == 'bfloat16'")
    short = -cpu[cpu["tensor"] == "lse"]["error_bias"].mean()
    return [
        Said("rounded: out {:.2e}, delta {:.2e} (predicted 1.95e-3, 1.25e-2).", (rounded["out"], rounded["delta"])),
        Said("flash_attn: out {:.1e}, delta {:.1e}, *inward*", (flash["out"], flash["delta"])),
        Said("above the reference by {:.0e} in the mean", (lse,)),
        Said("its exp(0) is 1 - {:.1e} in 16 bits (lse has a mean error of {:.2e};", (short, -short)),
        Said("Rounding takes P up to 1, but"),
    ]


def _one_value(tables: Tables, rows: pd.DataFrame) -> list[Said]:
    out = rows[rows["tensor"] == "out"]
    stored = out[(out["dtype"] == "bfloat16") & out["kernel"].isin(["flash_attn", "flash_attn_4"])]
    one = bool((stored["error_max"] < 2**-9).all())
    rounded = out[(out["dtype"] == "float32") & out["kernel_options"].str.contains("probability_dtype=bfloat16")]
    means = rounded.groupby("softmax_scale")[["error_bias", "error_rms"]].mean()
    normalised = out[(out["dtype"] == "bfloat16") & (out["who"] == "torch_math in 16 bits")]
    normalised = normalised.groupby("softmax_scale")["error_bias"].mean()
    exact = tables.claimed(TABLE, "With P unrounded", r"to ([\d.e-]+)")
    dv = rows[(rows["tensor"] == "dv") & rows["kernel"].isin(["flash_attn", "flash_attn_4"])]
    dv = dv.groupby(["softmax_scale", "kernel"])["error_rel"].mean().unstack()
    alike = (dv["flash_attn_4"] / dv["flash_attn"] - 1).abs().max() < 0.01
    return [
        Said("| negative | 0: flash_attn and flash_attn_4 store every out as 1.", holds=one),
        Said(
            "(eager) {:.1e}, {:.1e}, {:.1e} of rms {:.1e}, {:.1e}, {:.1e}.",
            (*means["error_bias"], *means["error_rms"]),
        ),
        Said("normalised first: {:.1e}, no out above 1 |", (normalised.min(),)),
        Said("(2^-9) from 1, because its largest weight is exactly 1."),
        Said("half a spacing above 1 is"),
        Said("With P unrounded, out is 1 within {:.1e}, not", exact),
        Said("weight need not be 1; on these rows"),
        Said("it stores 1 everywhere, as flash_attn does. Its dv has flash_attn's error to 1%.", holds=one and alike),
    ]


def _by_rank(tables: Tables, rows: pd.DataFrame) -> list[Said]:
    means = rows.groupby(["kernel", "tensor", "rank"])["diff_mean"].mean()
    flash, out = means["flash_attn"], "the mean diff of out on ranks 1 to 7"
    (away,) = tables.claimed(TABLE, f"PR #34, flash_attn: {out}", r"to ([\d.]+)")
    (of_lse,) = tables.claimed(TABLE, "(Added after the run.) PR #34, flash_attn: the mean", r"to ([\d.]+)")
    first = tables.claimed(TABLE, "PR #34: rank 0", r"^([\d.]+)")
    most = [each.holds for each in tables.judged(TABLE) if each.statement.startswith("PR #34, flash_attn: the largest")]
    eight, six = ", ".join(["{:.2e}"] * 8), ", ".join(["{:.2e}"] * 6)
    return [
        Said(
            "| 5.44e-5, 1.07e-4, 8.92e-5, 7.77e-5, 7.01e-5, 6.39e-5, 5.94e-5, 5.58e-5 | "
            + eight
            + " | reproduced to {:.0%}",
            (*flash["out"], away - 1),
            source=PR34,
        ),
        Said(
            "| 9.1e-8, 1.84e-7, 2.03e-7, 2.05e-7, 2.12e-7, 2.91e-7 | " + six + " | reproduced to {:.0%}",
            (*flash["lse"].iloc[:6], of_lse - 1),
            source=PR34,
        ),
        Said("the largest within a factor of 2;", holds=all(most)),
        Said("the PR prints a diff of 5.4e-5.", source=PR34),
        Said("shows the diff ({:.1e}), eager does not ({:.1e}):", (flash["out", 0], means["eager", "out", 0])),
        Said("of 477 rows and keys otherwise than one of 3,816."),
        Said("is {:.1f} times the published one, where at", first),
    ]
