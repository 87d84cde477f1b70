"""What memory_efficient claims about the 1e-5 of xformers PR #281, checked against its table."""

import pandas as pd

from experiments.claim import Claim, largest_below, smallest_above

ASSERTED = 1e-5  # largest absolute error
GRADIENTS = ("dq", "dk", "dv")
SIZE = ["seqlen", "head_dim"]


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] == -1) & results["tensor"].notna()]
    tf32 = rows["kernel_options"].str.contains("tf32=True", regex=False)
    uniform, wide = rows["inputs"] == "uniform", rows["inputs_options"].str.contains("std=4", regex=False)
    out, gradients = rows["tensor"] == "out", rows["tensor"].isin(GRADIENTS)
    normal = (rows["inputs"] == "gaussian") & ~wide
    return [
        _holds("In float32, inputs as torch.rand, out is within 1e-5 at every size.", rows[~tf32 & uniform & out]),
        _holds(
            "In float32, inputs as torch.rand, dq, dk and dv are within 1e-5 at every size.",
            rows[~tf32 & uniform & gradients],
        ),
        _holds(
            "In float32, inputs N(0, 1), out, dq, dk and dv are within 1e-5 at every size.",
            rows[~tf32 & normal & (out | gradients)],
        ),
        _fails("In float32, inputs N(0, 4^2), out is beyond 1e-5 at every size.", rows[~tf32 & wide & out]),
        _fails("With TF32, inputs as torch.rand, out is beyond 1e-5 at every size.", rows[tf32 & uniform & out]),
        _falls("With TF32, inputs as torch.rand, out's error falls with the length.", rows[tf32 & uniform & out]),
        _three_products(rows[~tf32 & rows["tensor"].isin(("out", *GRADIENTS))]),
    ]


def answer(results: pd.DataFrame) -> list[Claim]:
    """Return the claims of the README's Answer, as this table judges them."""
    return [*claims(results)[:3], _broken(results)]


def _broken(results: pd.DataFrame) -> Claim:
    statement = "With TF32, inputs as torch.rand, the largest error is beyond 1e-5."
    rows = results[(results["rank"] == -1) & results["tensor"].isin(("out", *GRADIENTS))]
    rows = rows[rows["kernel_options"].str.contains("tf32=True", regex=False) & (rows["inputs"] == "uniform")]
    if rows.empty:
        return Claim(statement, None, "not measured")
    largest = rows["error_max"].max()
    return Claim(statement, bool(largest > ASSERTED), f"{largest:.2g}")


def _holds(statement: str, rows: pd.DataFrame) -> Claim:
    return largest_below(statement, rows, ASSERTED, "error_max", _where)


def _fails(statement: str, rows: pd.DataFrame) -> Claim:
    """Each size by the largest error over seeds, kernel by kernel; the smallest of those decides."""
    largest = rows.loc[rows.groupby(["kernel", *SIZE])["error_max"].idxmax()]
    return smallest_above(statement, largest, ASSERTED, "error_max", _where)


def _falls(statement: str, rows: pd.DataFrame) -> Claim:
    means = rows.groupby(["kernel", *SIZE])["error_max"].mean().unstack("seqlen")
    if means.shape[1] < 2:
        return Claim(statement, None, "fewer than two lengths")
    shrunk = means[means.columns.max()] / means[means.columns.min()]
    evidence = f"length {means.columns.max()} over {means.columns.min()}: {shrunk.min():.2f} to {shrunk.max():.2f}"
    return Claim(statement, bool((shrunk < 1).all()), evidence)


def _three_products(rows: pd.DataFrame) -> Claim:
    statement = "torch_efficient's relative error in float32 is below 4 times chunked's in every tensor at every size."
    keys = ["inputs_options", *SIZE, "tensor"]
    means = rows.groupby([*keys, "kernel"])["error_rel"].mean().unstack("kernel")
    if not {"torch_efficient", "chunked"} <= set(means.columns):
        return Claim(statement, None, "torch_efficient was not measured")
    ratio = (means["torch_efficient"] / means["chunked"]).dropna()
    where = ", ".join(f"{key} {value}" for key, value in zip(keys, ratio.idxmax(), strict=True))
    return Claim(statement, bool(ratio.max() < 4), f"from {ratio.min():.2f} to {ratio.max():.2f} ({where})")


def _where(row: pd.Series) -> str:
    return f"{row['tensor']} of {row['kernel']}, length {row['seqlen']}, head_dim {row['head_dim']}"
