"""What kernels claims about every kernel's own rounding, checked against its table."""

import pandas as pd

from accuracy.results.claim import Claim

ROUNDED = ("out", "dq", "dk", "dv")
SIXTEEN = ("bfloat16", "float16")
# These round dk and dv of each query head before they sum a group's.
BY_QUERY_HEAD = ("flash_attn", "torch_flash", "torch_cudnn", "torch_efficient", "jax_pallas")
ONLY_THE_RESULT = ("chunked", "torch_math")  # round nothing on the way
EIGHT_BITS = ("sage", "triton_fp8", "cudnn_fp8", "flashinfer_fp8")  # have experiments of their own: fp8_remedies


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] == -1) & results["tensor"].notna() & ~results["kernel"].isin(EIGHT_BITS)]
    sixteen = rows[rows["dtype"].isin(SIXTEEN) & rows["tensor"].isin(ROUNDED)]
    on_cpu = (rows["kernel"] == "torch_flash") & ~rows["device"].str.contains("NVIDIA", regex=False)
    return [
        _whole(results),
        _below("In float64 every kernel agrees with the reference to 1e-12.", rows[rows["dtype"] == "float64"], 1e-12),
        _below(
            "In 16 bits no kernel's out, dq, dk or dv is 2 floors away (torch's CPU flash kernel apart).",
            sixteen[~on_cpu.loc[sixteen.index]], 2.0, "x_floor",
        ),
        _below(
            "Kernels that round nothing but the result (chunked, torch_math) are within 1.05 floors in 16 bits.",
            sixteen[sixteen["kernel"].isin(ONLY_THE_RESULT)], 1.05, "x_floor",
        ),
        _below(
            "(Added after the run.) torch_math is, and chunked's out and dv; its delta takes the stored, rounded out.",
            sixteen[
                (sixteen["kernel"] == "torch_math")
                | (sixteen["kernel"] == "chunked") & sixteen["tensor"].isin(("out", "dv"))
            ],
            1.05, "x_floor",
        ),
        _below("In float32 every tensor's relative error is below 2^-20.", rows[rows["dtype"] == "float32"], 2**-20),
        _below(
            "lse of 16-bit inputs is within 16 floors of float32 (torch's CPU flash kernel apart).",
            rows[rows["dtype"].isin(SIXTEEN) & (rows["tensor"] == "lse") & ~on_cpu], 16.0, "x_floor",
        ),
        _alike(sixteen),
    ]  # fmt: skip


def answer(results: pd.DataFrame) -> list[Claim]:
    """What README's Answer says."""
    rows = results[(results["rank"] == -1) & results["dtype"].isin(SIXTEEN) & results["tensor"].isin(ROUNDED)]
    rows = rows[~rows["kernel"].isin(EIGHT_BITS)]
    return [_below("In 16 bits every kernel is within 2.2 times the floor.", rows, 2.2, "x_floor"), _cause(rows)]


def _cause(rows: pd.DataFrame) -> Claim:
    """Rounding each query head's part before the sum over a group shows in dk and dv where heads share keys."""
    statement = (
        "dk and dv of the kernels that round each query head's are 1.7 times the floor or more, others' below 1.5, "
        "jax_nn's apart."
    )
    rows = rows[rows["tensor"].isin(("dk", "dv")) & (rows["heads"] > rows["heads_kv"]) & (rows["kernel"] != "jax_nn")]
    means = rows.groupby(["kernel", "tensor"])["x_floor"].mean()
    apart = means.index.get_level_values("kernel").isin(BY_QUERY_HEAD)
    if not apart.any() or apart.all():
        return Claim(statement, None, "not measured")
    low, high = means[apart].min(), means[~apart].max()
    return Claim(statement, bool(low >= 1.7 and high < 1.5), f"from {low:.2f}; others to {high:.2f}")


def _whole(results: pd.DataFrame) -> Claim:
    failed = results[results["status"] == "failed"]
    names = sorted(failed["kernel"].unique())
    evidence = f"{failed['case_id'].nunique()} failed of {results['case_id'].nunique()}"
    return Claim("No case fails.", failed.empty, f"{evidence} ({', '.join(names)})" if names else evidence)


def _below(statement: str, rows: pd.DataFrame, bound: float, column: str = "error_rel") -> Claim:
    if rows.empty:
        return Claim(statement, None, "not measured")
    worst = rows.loc[rows[column].idxmax()]
    where = f"{worst['tensor']} of {worst['kernel']}, {worst['dtype']}, head_dim {worst['head_dim']}, {worst['mask']}"
    return Claim(statement, bool(worst[column] < bound), f"largest {column}: {worst[column]:.3g} ({where})")


def _alike(rows: pd.DataFrame) -> Claim:
    """Largest over smallest mean x_floor among masks and head dims, kernel by kernel."""
    statement = "Mask and head dim change no kernel's x_floor in 16 bits by 1.5 times."
    if rows.empty:
        return Claim(statement, None, "not measured")
    means = rows.groupby(["kernel", "dtype", "tensor", "mask", "head_dim"])["x_floor"].mean()
    spread = means.groupby(["kernel", "dtype", "tensor"]).agg(lambda each: each.max() / each.min())
    return Claim(statement, bool(spread.max() < 1.5), f"largest: {spread.max():.2f} ({', '.join(spread.idxmax())})")
