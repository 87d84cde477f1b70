"""The numbers of README.md, from the published tables."""

import runpy
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from experiments.published import Tables, chosen, markdown, span

GPU, CPU = "bpt_backward/nvidia-h200", "bpt_backward/amd-epyc"
CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
ISSUE, PROFILE = CLAIMS["ISSUE_DQ"], CLAIMS["_profile"]
HEADS = 5  # of the package's test


def blocks(tables: Tables) -> dict[str, str]:
    rows, cpu = tables.rows(GPU), tables.rows(CPU)
    gpu, diffs = PROFILE(rows, "dq"), {name: PROFILE(cpu, name) for name in ("dq", "dk", "dv")}
    factor = round(float((gpu.to_numpy()[1:] / ISSUE[1:]).mean()), 2)
    here = {f"{name}, here": each for name, each in diffs.items()}
    dq, *others = here.items()
    time, peak = _chunked(tables.csv("bpt_backward/splitting.csv.gz"))
    saved = 100 * (1 - peak.drop(2048))
    return {
        "cases": f"{chosen(rows, status='ok')['case_id'].nunique()} cases",
        "factor": markdown(
            ("rank", *range(8)),
            (
                (name, "right", *(f"{each:.4f}" for each in means))
                for name, means in {
                    "here": gpu[1:],
                    f"the issue's, times {factor}": [each * factor for each in ISSUE[1:]],
                    "the issue's": ISSUE[1:],
                }.items()
            ),
        ),
        "claims": tables.claims(GPU),
        "claims_cpu": tables.claims(CPU),
        "cpu": _by_rank("rank", dict([dq, ("dq, the issue's", ISSUE), *others])),
        "within": f"within {abs(diffs['dq'].to_numpy()[1:] / ISSUE[1:] - 1).max():.1%} of the issue's",
        "rank_0": f"{ISSUE[0] / diffs['dq'][0]:.0f} times our diff",
        "then": _then(tables.csv("bpt_backward/printed.csv.gz")),
        "out_0": _of_heads(tables.csv("bpt_backward/printed.csv.gz")),
        "splitting": markdown(
            ("chunks of", "time, 5 heads", "8", "32", "peak memory, 5 heads", "8", "32"),
            (
                (f"{size:,}", *(f"{each:.1f}" for each in time.loc[size]), *(f"{each:.2f}" for each in peak.loc[size]))
                for size in (1024, 512, 128)
            ),
        ),
        "saves": f"it saves {span(saved.to_numpy().ravel(), '.0f')}% of the peak and never time: chunks of 1,024 take {span(time.loc[1024], '.1f')} times as long",
    }


def _by_rank(title: str, means: dict[str, Iterable[float]]) -> str:
    return markdown((title, *range(8)), ((name, *map(_short, each)) for name, each in means.items()))


def _short(diff: float) -> str:
    return f"{diff:.4f}" if diff > 1e-3 else f"{diff:.1e}".replace("e-0", "e-")


def _then(rows: pd.DataFrame) -> str:
    """The means as the package's test of that day prints them."""
    means = rows.groupby(["tensor", "heads", "chunk", "joined", "rank"], dropna=False)["printed"].mean()
    one_call = means.xs("one call", level="chunk").droplevel("joined")
    step = means.xs(("1024", "step"), level=["chunk", "joined"])
    found = {f"{name} of one call": one_call[name, HEADS] for name in ("dq", "dk", "dv")}
    found |= {"dq diff": step["dq", HEADS], "dq diff, the issue's": ISSUE}
    return _by_rank("printed mean", found | {f"{name} diff": step[name, HEADS] for name in ("dk", "dv", "out", "lse")})


def _of_heads(rows: pd.DataFrame) -> str:
    """The mean diff of rank 0's out by the number of heads."""
    out = chosen(rows, tensor="out", rank=0, chunk="1024", joined="step").groupby("heads")["printed"].mean()
    return ", ".join(f"{_short(mean)} with {heads}" for heads, mean in out.items())


def _chunked(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Forward and backward of the last rank, cut into chunks over not cut: time, and the larger of the two peaks."""
    costs = rows.pivot_table(index=["chunk", "heads"], columns="way", values=["ms", "peak_mib"])
    time, peak = costs["ms"].sum(axis=1).unstack("heads"), costs["peak_mib"].max(axis=1).unstack("heads")
    return time / time.loc[2048], peak / peak.loc[2048]
