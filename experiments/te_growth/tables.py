"""The numbers of README.md, upstream.md and FINDINGS.md, from the published tables."""

import math

import pandas as pd

from accuracy.results.table import ALL_RANKS
from accuracy.verdict.growth import Growth, fit_growth
from experiments.claim import judge
from experiments.published import TENSORS, Tables, cells, chosen, joined, markdown, span

GROWTH, REAL = "te_growth/nvidia-h200", "te_real_ranks/nvidia-h200-x2"
AS_WRITTEN_RUNS = {"real": "te_growth/nvidia-h200-x1", "simulated": "te_growth/nvidia-h200-as-written"}
FROM = 16  # ranks, from which exponents are fitted, as in claims.py
SIZES, FEW = [2, 4, 8, 16, 32, 64, 128, 256], [4, 16, 64, 256]
OUT, DQ, SUMS = "out_accumulator=accumulate", "dq_accumulator=accumulate", "dkv_accumulator=accumulate"
SENT = f"{SUMS},gradient_wire=accumulate"
GAIN = ["error_gain", "error_gain_se"]
ALL, AS_WRITTEN = f"{OUT},{DQ},{SENT}", "merge=rescaled_twice"


def blocks(tables: Tables) -> dict[str, str]:
    rows = tables.rows(GROWTH)
    worst = tables.worst_rank(GROWTH, ("dtype", "variant", "precision", "tensor", "world_size"))
    here = worst["bfloat16"]
    ring, sums, zigzag = here["te_p2p"], here["te_all_gather", ""], here["zigzag", ""]
    both = worst.unstack("dtype").loc["te_p2p"]
    held = [each.holds for each in judge("te_growth", rows) if each.holds is not None]
    written = (both.loc[(AS_WRITTEN, "out")] / both.loc[("", "out")]).dropna().loc[64:]
    a2a = chosen(rows, variant="te_a2a", rank=-1, tensor=TENSORS, world_size=SIZES)
    a2a = a2a.groupby(["dtype", "tensor", "world_size"])["x_single_device"].mean()
    float32 = _largest(ring[ALL], "dq", "dk", "dv")
    whole = chosen(rows, variant="te_p2p", precision="", dtype="bfloat16", tensor="out", rank=ALL_RANKS)
    whole = whole.groupby("world_size")["x_single_device"].mean()
    ended = span(written.stack())
    growth = [
        ("te_p2p", "out", *cells(ring["", "out"], SIZES)),
        *(("", name, *cells(ring["", name], SIZES)) for name in TENSORS[1:]),
        ("te_all_gather", "out, dq", *cells(_largest(sums, "out", "dq"), SIZES)),
        *(("", name, *cells(sums[name], SIZES)) for name in ("dk", "dv")),
        ("te_a2a (8 heads)", "all", *cells(_largest(here["te_a2a", ""], *TENSORS), SIZES)),
        ("zigzag, float32 accumulators", "out", *cells(zigzag["out"], SIZES)),
        ("", "dq, dk, dv", *cells(_largest(zigzag, "dq", "dk", "dv"), SIZES)),
    ]
    remedies = [
        ("out", "out", *cells(ring[OUT, "out"], FEW)),
        ("dq", "dq", *cells(ring[DQ, "dq"], FEW)),
        ("sums of dk and dv, sent in 16 bits", "dk", *cells(ring[SUMS, "dk"], FEW)),
        ("sums of dk and dv, sent in float32", "dk", *cells(ring[SENT, "dk"], FEW)),
        ("all of them", "out", *cells(ring[ALL, "out"], FEW)),
        ("", "dq, dk, dv", *cells(float32, FEW)),
        ("none, merge as written (NVTE_TORCH_COMPILE=0)", "out", *cells(ring[AS_WRITTEN, "out"], FEW)),
    ]
    last = both.loc[[("", "dk", 256), ("", "dv", 256)]].stack()
    return {
        "grows": f"out has {ring['', 'out', 64]:.1f} times single device's error at 64 ranks and"
        f" {ring['', 'out', 256]:.1f} times at 256 ranks",
        "together": f"{whole[64]:.1f} and {whole[256]:.1f} times over all ranks together",
        "cases": f"{chosen(rows, status='ok')['case_id'].nunique()} measured cases",
        "growth": markdown(("", "tensor", "W = 2", *SIZES[1:]), growth),
        "remedies": markdown(("kept in float32", "tensor", *FEW), remedies),
        "halves": f"{(both['float16'][''] / ring['']).sub(1).abs().max():.1%}",
        "claims": f"{sum(held)} of {len(held)} claims hold. Not held: dk and dv at 256 ranks are {span(last)} (9 to 14"
        f" were predicted; out is in its range); te_a2a is within {a2a.sub(1).abs().max():.2%} of single device over all"
        f" ranks, not within 0.1%; the merge as written is {ended} times the compiled one, not 1.3 to 1.5: at 256 ranks out"
        f" is {ring[AS_WRITTEN, 'out', 256]:.0f} times single device's error. dq in float32 alone inherits the error of a"
        f" 16-bit out through delta: {ring[DQ, 'dq', 256]:.2f} at 256 ranks.",
        "unheld": f"{_word(len(held) - sum(held))} of the {len(held)} claims on its first run did not hold.",
        **_upstream(tables, here, written["bfloat16"]),
        "exponents": _exponents(rows),
        **_bias(tables, rows),
    }


def _exponents(rows: pd.DataFrame) -> str:
    """te_p2p in bfloat16: the exponent and its 95% interval over seeds, of the worst rank and of all ranks together."""
    ring = chosen(rows, variant="te_p2p", precision="", dtype="bfloat16", tensor=TENSORS)
    ring = ring[ring["world_size"] >= FROM]
    worst = ring[ring["rank"] != ALL_RANKS].groupby(["tensor", "world_size", "seed"])["x_single_device"].max()
    whole = ring[ring["rank"] == ALL_RANKS].set_index(["tensor", "world_size", "seed"])["x_single_device"]

    def fitted(values: "pd.Series[float]", tensor: str) -> str:
        found = fit_growth((size, value) for (size, _), value in values[tensor].items())
        return found.text if isinstance(found, Growth) else found

    lines = ((tensor, fitted(worst, tensor), fitted(whole, tensor)) for tensor in TENSORS)
    return markdown(("te_p2p, 16 to 256 ranks", "worst rank", "all ranks together"), lines)


def _bias(tables: Tables, rows: pd.DataFrame) -> dict[str, str]:
    """The merge as written: the error of out and its factor on the reference, on the rank where the error is largest
    (mean over seeds) and over all ranks together."""
    runs = [chosen(tables.rows(name), tensor="out").assign(ranks=ranks) for ranks, name in AS_WRITTEN_RUNS.items()]
    out = pd.concat(runs)
    means = out.groupby(["dtype", "world_size", "ranks", "rank"])[["x_single_device", "error_rel", *GAIN]].mean()
    one = means.drop(index=ALL_RANKS, level="rank")
    one = one.loc[one.groupby(["dtype", "world_size"])["x_single_device"].idxmax()].reset_index("rank")
    whole = means.xs(ALL_RANKS, level="rank")
    lines = [
        (dtype, size, ranks, f"{at['x_single_device']:.2f}", f"{at['rank']:.0f}",
         f"{at['error_gain'].round(4) + 0:.4f} ± {at['error_gain_se']:.4f}",
         f"{whole.loc[(dtype, size, ranks), 'x_single_device']:.2f}",
         f"{whole.loc[(dtype, size, ranks), 'error_gain'].round(4) + 0:.4f}")
        for (dtype, size, ranks), at in one.sort_index().iterrows()
    ]  # fmt: skip
    compiled = chosen(rows, variant="te_p2p", precision="", tensor="out", world_size=256, dtype="bfloat16")
    compiled = compiled.groupby("rank")["error_gain"].mean().abs().max()
    one = one.droplevel("ranks")
    last, half, real = one.loc["bfloat16", 256], one.loc["float16", 256], one.loc[["bfloat16", "float16"], :32, :]
    error = one["x_single_device"]
    steps = [
        f"W^{math.log2(error[dtype, 2 * size] / error[dtype, size]):.2f} from {size} to {2 * size}"
        for dtype in ("bfloat16", "float16") for size in (64, 128)
    ]  # fmt: skip
    head = ("", "W", "ranks", "worst rank", "which", "its gain ± se", "all ranks", "their gain")
    return {
        "bias": markdown(head, lines),
        "biased": f"at 256 ranks out on rank {last['rank']:.0f} is {-last['error_gain']:.1%} too small (se"
        f" {last['error_gain_se']:.2%}), which is {(last['error_gain'] / last['error_rel']) ** 2:.0%} of its squared error",
        "begins": f"at 128 ranks out on rank {one.loc[('bfloat16', 128), 'rank']:.0f} is"
        f" {one.loc[('bfloat16', 128), 'error_gain']:.2%} too large",
        "power": f"in bfloat16 as {' and '.join(steps[:2])} ranks, in float16 as {' and '.join(steps[2:])}",
        "unbiased": f"float16's gain there is within {abs(half['error_gain']) + 2 * half['error_gain_se']:.4f} of 0",
        "real_gain": f"at most {real['error_gain'].abs().max():.4f} in size",
        "compiled": f"the default, compiled merge has a gain of at most {compiled:.4f} in size on any of 256 ranks, mean of the seeds",
        "written_256": f"{error['bfloat16', 256]:.1f} times",
        "bias_row": f"{error['bfloat16', 256]:.1f} times; gain {last['error_gain']:.3f} ± {last['error_gain_se']:.4f}",
    }


def _word(number: int) -> str:
    return dict(enumerate(("None", "One", "Two", "Three", "Four"))).get(number, str(number))


def _upstream(tables: Tables, ours: "pd.Series[float]", written: "pd.Series[float]") -> dict[str, str]:
    """Their code at 2 real ranks beside our schedule at more."""
    theirs = tables.worst_rank(REAL, ("variant", "precision", "tensor"), dtype="bfloat16", world_size=2)

    def four(values: "pd.Series[float]") -> str:
        return joined(values[TENSORS])

    def line(way: str, *sizes: int) -> list[str]:
        simulated = [four(ours[f"te_{way}", ""].xs(size, level=1)) for size in sizes]
        found = [four(theirs[f"transformer_engine_{way}", ""]), *simulated]
        return [f"{way}: out, dq, dk, dv", *found, *[""] * (4 - len(found))]

    float32 = [four(ours["te_p2p", ALL].xs(size, level=1)) for size in (4, 64, 256)]
    name = "p2p with float32 accumulators and dk, dv sent in float32 (simulated at every size)"
    lines = [line("p2p", 4, 64, 256), line("all_gather", 4, 64, 256), line("a2a", 4), [name, "", *float32]]
    head = ("", "cp_size 2 (your code, two H200s)", "4 (simulated)", "64 (simulated)", "256 (simulated)")
    return {
        "upstream": markdown(head, lines),
        "written": f"{written[64]:.1f} times that error at 64 ranks, {written[256]:.1f} times at 256",
    }


def _largest(values: "pd.Series[float]", *names: str) -> "pd.Series[float]":
    """By world size, of several tensors."""
    return values.loc[list(names)].groupby("world_size").max()
