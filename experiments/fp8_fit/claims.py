"""What fp8_fit claims about kernels and their emulation, checked against its table.

A pair's rows have both errors' norms (error_rel, drift_error_rel) and that of the difference (drift_rel), from which
the correlation of the two error vectors follows: (a^2 + b^2 - d^2) / (2 a b).
"""

import pandas as pd

from accuracy.results.claim import Claim

TENSORS = ("out", "dq", "dk", "dv")
FITTED_ON = "gaussian"
NAMES = {"sage": "SageAttention", "triton_fp8": "The Triton FP8 kernel", "cudnn_fp8": "cuDNN's FP8 attention"}


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = judged(results)
    return [_has_its_errors(fitted(rows), name) for name in NAMES] + [_size_is_no_proof(rows)]


def judged(results: pd.DataFrame) -> pd.DataFrame:
    """A row for each kernel, candidate, distribution, mask and tensor: ratio of the norms, correlation."""
    rows = results[(results["rank"] == -1) & results["tensor"].isin(TENSORS) & results["drift_rel"].notna()]
    rows = rows.assign(path_a=rows["kernel"] + "/" + rows["kernel_options"].fillna(""), path_b=rows["against"])
    mine, other, apart = rows["error_rel"], rows["drift_error_rel"], rows["drift_rel"]
    correlation = (mine**2 + other**2 - apart**2) / (2 * mine * other)
    kept = ["path_a", "path_b", "inputs", "mask", "seqlen", "heads", "tensor", "error_rel"]
    return rows[kept].assign(ratio=other / mine, correlation=correlation, apart=apart / mine)


def fitted(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each kernel the rows of the candidate that is nearest on Gaussian inputs, all tensors and masks together."""
    distance = rows[rows["inputs"] == FITTED_ON].groupby(["path_a", "path_b"])["apart"].mean().reset_index()
    best = distance.loc[distance.groupby("path_a")["apart"].idxmin(), ["path_a", "path_b"]]
    return rows.merge(best, on=["path_a", "path_b"])


def _has_its_errors(rows: pd.DataFrame, kernel: str) -> Claim:
    statement = (
        f"{NAMES[kernel]}: on three distributions it was not fitted on, the emulation's errors have its norms within 2%"
        " and correlate with its own at 0.9 or more."
    )
    mine = rows[rows["path_a"].str.startswith(f"{kernel}/") & (rows["inputs"] != FITTED_ON)]
    if mine.empty:
        return Claim(statement, None, "not measured")
    least = mine.loc[mine["correlation"].idxmin()]
    furthest = mine.loc[(mine["ratio"] - 1).abs().idxmax()]
    said = (
        f"norms {mine['ratio'].min():.4f} to {mine['ratio'].max():.4f} ({furthest['tensor']}, {furthest['inputs']}),"
        f" least correlation {least['correlation']:.4f} ({least['tensor']}, {least['inputs']})"
    )
    holds = (mine["ratio"] - 1).abs().max() <= 0.02 and mine["correlation"].min() >= 0.9
    return Claim(statement, bool(holds), said)


def _size_is_no_proof(rows: pd.DataFrame) -> Claim:
    statement = (
        "With blocks of 64 queries in place of 128 the emulation's errors on Gaussian inputs have Sage's norm within 3%"
        " and correlate with them below 0.9."
    )
    mine = rows[rows["path_b"].str.contains("query_block:64", regex=False) & (rows["inputs"] == FITTED_ON)]
    if mine.empty:
        return Claim(statement, None, "not measured")
    holds = (mine["ratio"] - 1).abs().max() <= 0.03 and mine["correlation"].max() < 0.9
    said = (
        f"norms {mine['ratio'].min():.3f} to {mine['ratio'].max():.3f}, correlation to {mine['correlation'].max():.3f}"
    )
    return Claim(statement, bool(holds), said)
