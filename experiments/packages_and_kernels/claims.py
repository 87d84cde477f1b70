"""What packages_and_kernels claims: not whose ring it is matters but which kernel, in dk and dv of shared heads."""

import pandas as pd

from accuracy.package.twins import OURS
from accuracy.results.claim import Claim, beside
from accuracy.results.table import ALL_RANKS

SAME = 0.01  # experiment packages: what is not bit for bit the same differs by about 1e-4
ALIKE = 1.05  # experiment kernels: single device outs of fused kernels are 1.28 to 1.30 floors
HEAD_BY_HEAD = ("flash_attn", "torch_flash", "torch_efficient", "torch_cudnn")
GROUP_AT_ONCE = ("triton_split_backward",)
STILL_WORSE = 1.1


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["status"] == "ok") & (results["rank"] == ALL_RANKS) & results["x_floor"].notna()]
    beside = _beside_ours(rows)
    ours = rows[rows["variant"].isin(set(OURS.values()))]
    return [_whose(beside), _outs(ours), _shared_heads(ours), _kernel_before_package(beside, ours)]


def _beside_ours(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of packages without a known fault."""
    both = beside(rows, OURS)
    cast = both["variant"].isin(("ring_flash_attn_ring", "yunchang_ring")) & (both["dtype"] == "float16")
    packed = (both["variant"] == "ring_flash_attn_llama3") & (both["kernel"] == "flash_attn")
    summed = both["ours"] == "llama3"
    excepted = (
        (cast & (both["tensor"] == "dq"))
        | (packed & (both["tensor"] == "lse"))
        | (summed & both["tensor"].isin(("dk", "dv")))
    )
    return both[~excepted]


def _whose(beside: pd.DataFrame) -> Claim:
    statement = "On one kernel every package's variant has the error of ours of the same schedule, to 1%."
    if beside.empty:
        return Claim(statement, None, "not measured")
    away = (beside["ratio"] - 1).abs()
    worst = beside.loc[away.idxmax()]
    evidence = f"{int((away == 0).sum())} of {len(beside)} rows equal in every digit; farthest: {_where(worst)}"
    return Claim(statement, bool(away.max() < SAME), f"{evidence}, {worst['ratio']:.4g} times ours")


def _outs(ours: pd.DataFrame) -> Claim:
    statement = "In one schedule the fused kernels' out is equally accurate, to 5%."
    apart = _apart(ours[(ours["tensor"] == "out") & ours["kernel"].isin((*HEAD_BY_HEAD, *GROUP_AT_ONCE))])
    if apart.empty:
        return Claim(statement, None, "needs two fused kernels")
    return Claim(statement, bool(apart.max() < ALIKE), f"largest over least kernel: at most {apart.max():.3f}")


def _shared_heads(ours: pd.DataFrame) -> Claim:
    statement = (
        "Kernels that round the gradients of every head before they sum a group's are at least 1.1 times as wrong in"
        " dk and dv as the Triton kernel that sums first, in every ring."
    )
    rows = ours[ours["tensor"].isin(("dk", "dv")) & ours["variant"].isin(("ring", "zigzag", "striped"))]
    case = ["variant", "inputs", "dtype", "world_size", "tensor"]
    late = rows[rows["kernel"].isin(GROUP_AT_ONCE)].set_index(case)["error_rel"]
    early = rows[rows["kernel"].isin(HEAD_BY_HEAD)].join(late.rename("summed_first"), on=case, how="inner")
    if early.empty:
        return Claim(statement, None, "not measured")
    ratio = early["error_rel"] / early["summed_first"]
    least = _where(early.loc[ratio.idxmin()])
    evidence = f"{ratio.min():.2f} to {ratio.max():.2f} times over {len(ratio)} cases; least: {least}"
    return Claim(statement, bool(ratio.min() > STILL_WORSE), evidence)


def _kernel_before_package(beside: pd.DataFrame, ours: pd.DataFrame) -> Claim:
    statement = (
        "Where a package has no fault, exchanging the kernel changes dk and dv more than exchanging the package."
    )
    between = _apart(ours[ours["tensor"].isin(("dk", "dv")) & (ours["kernel"] != "eager")])
    rows = beside[beside["tensor"].isin(("dk", "dv"))]
    if between.empty or rows.empty:
        return Claim(statement, None, "not measured")
    package = float((rows["ratio"] - 1).abs().max())
    evidence = f"least change between kernels {between.min() - 1:.1%}, largest between packages {package:.1%}"
    return Claim(statement, bool(between.min() - 1 > package), evidence)


def _apart(rows: pd.DataFrame) -> pd.Series:
    """The largest over the least error of kernels, for every case that two or more of them measured."""
    groups = rows.groupby(["variant", "inputs", "dtype", "world_size", "tensor"])["error_rel"]
    found = groups.agg(["min", "max", "count"])
    found = found[found["count"] > 1]
    return found["max"] / found["min"]


def _where(row: pd.Series) -> str:
    return f"{row['tensor']} of {row['variant']}, {row['kernel']}, {row['inputs']}, {row['dtype']}"
