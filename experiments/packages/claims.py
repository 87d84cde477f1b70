"""What packages claims about published packages, by version, checked against its table.

Versions: ring-flash-attn 0.1.8, yunchang 0.6.4, ring-attention-pytorch 0.5.20, axolotl-ringmaster 0.2.7; a run's own
stand in its `code` column and in run.json. Each variant is compared with ours of the same kind and case.
"""

import math

import pandas as pd

from accuracy.package.installed import OURS
from experiments.claim import Claim, beside, largest_below, smallest_above

SAME = 0.01  # relative: equal bits give 0; the spread of a relative Frobenius norm over seeds is about this
WRONG = 0.1  # relative error: float32 rounding is 10^-7
ONE_MORE_ROUNDING = math.sqrt(2)
GRADIENTS = ("dq", "dk", "dv")
CAST_DQ = ("ring_flash_attn_ring", "ring_flash_attn_llama3_ring", "yunchang_ring")
ALIASED = (
    *(name for name in OURS if name.startswith("ring_flash_attn_") and name != "ring_flash_attn_llama3"),
    *("yunchang_ring", "yunchang_zigzag", "yunchang_stripe", "yunchang_hybrid"),
)
STACKED = ("ring_attention_pytorch_ring", "ring_attention_pytorch_striped")
OTHER_SCHEDULES = ("torch_context_parallel_public",)  # than that of ours beside them
TWINS = tuple(
    name
    for name in OURS
    if name.startswith(("ring_flash_attn_", "torch_", "yunchang_")) and name not in OTHER_SCHEDULES
)


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = beside(results[(results["status"] == "ok") & (results["rank"] == -1) & results["tensor"].notna()], OURS)
    many = rows[rows["world_size"] > 1]
    return [
        _same(rows),
        _cast(many),
        _aliased_dq(many),
        _aliased_dkv(many),
        _stacked(rows),
        _sums_in_16_bits(many),
        _nothing_else(rows),
    ]


def answer(results: pd.DataFrame) -> list[Claim]:
    """What README's Answer says: the wrong gradients, and what is as accurate as ours."""
    rows = beside(results[(results["status"] == "ok") & (results["rank"] == -1) & results["tensor"].notna()], OURS)
    return [_aliased_dq(rows[rows["world_size"] > 1]), _stacked(rows), _same(rows)]


def _known(rows: pd.DataFrame) -> pd.Series:
    """Rows that one of the faults below explains."""
    float16, float32 = rows["dtype"] == "float16", rows["dtype"] == "float32"
    dkv, gradient = rows["tensor"].isin(("dk", "dv")), rows["tensor"].isin(GRADIENTS)
    many = rows["world_size"] > 1
    cast = rows["variant"].isin(CAST_DQ) & (rows["tensor"] == "dq") & (float16 | float32)
    aliased = rows["variant"].isin(ALIASED) & gradient & float32 & many
    return cast | aliased | (rows["variant"].isin(STACKED) & dkv)


def _same(rows: pd.DataFrame) -> Claim:
    statement = (
        "Where no fault below interferes, ring-flash-attn 0.1.8, yunchang 0.6.4 and torch's context parallelism are as"
        " accurate as our variants of the same name, to 1% (apart: llama3's own sums of dk and dv, and the lse of the"
        " packed flash-attn kernel that it calls)."
    )
    rows = rows[rows["variant"].isin(TWINS) & ~_known(rows)]
    rows = rows[(rows["variant"] != "ring_flash_attn_llama3") | ~rows["tensor"].isin(("dk", "dv"))]
    packed = rows["variant"].str.startswith("ring_flash_attn_llama3") & (rows["kernel"] == "flash_attn")
    rows = rows[~packed | (rows["tensor"] != "lse")]
    if rows.empty:
        return Claim(statement, None, "not measured")
    away = (rows["ratio"] - 1).abs()
    equal = int((away == 0).sum())
    evidence = f"{equal} of {len(rows)} rows equal in every digit; farthest: {_row(rows.loc[away.idxmax()])}"
    return Claim(statement, bool(away.max() < SAME), evidence)


def _cast(rows: pd.DataFrame) -> Claim:
    statement = (
        "ring-flash-attn 0.1.8 and yunchang 0.6.4 round the ring's dq to bfloat16 whatever the inputs are: in"
        " float16 it is more than twice as wrong as ours."
    )
    rows = rows[rows["variant"].isin(CAST_DQ) & (rows["dtype"] == "float16") & (rows["tensor"] == "dq")]
    return smallest_above(statement, rows, 2.0, "ratio", _where)


def _aliased_dq(rows: pd.DataFrame) -> Claim:
    statement = (
        "ring-flash-attn 0.1.8 and yunchang 0.6.4 accumulate float32 gradients in a buffer that the next block"
        " overwrites: dq of ring, zigzag, stripe (and what is made of them) is wrong wherever a ring has two ranks."
    )
    rows = rows[rows["variant"].isin(ALIASED) & (rows["dtype"] == "float32")]
    one_rank_ring = (rows["variant"] == "yunchang_hybrid") & (rows["world_size"] == 2)
    return smallest_above(statement, rows[~one_rank_ring & (rows["tensor"] == "dq")], WRONG, "error_rel", _where)


def _aliased_dkv(rows: pd.DataFrame) -> Claim:
    statement = (
        "By the same buffer their zigzag's and stripe's float32 dk and dv are wrong from 4 ranks on (below, and in the"
        " ring, it depends on whether the wire is faster than the next block)."
    )
    named = ("ring_flash_attn_zigzag", "ring_flash_attn_stripe", "yunchang_zigzag", "yunchang_stripe")
    rows = rows[rows["variant"].isin(named) & (rows["dtype"] == "float32") & (rows["world_size"] >= 4)]
    return smallest_above(statement, rows[rows["tensor"].isin(("dk", "dv"))], WRONG, "error_rel", _where)


def _stacked(rows: pd.DataFrame) -> Claim:
    statement = (
        "ring-attention-pytorch 0.5.20 returns dk + dv for dk and the next rank's dk + dv for dv at every world size;"
        " its out and dq are right."
    )
    rows = rows[rows["variant"].isin(STACKED)]
    claim = smallest_above(statement, rows[rows["tensor"].isin(("dk", "dv"))], WRONG, "error_rel", _where)
    right = rows[rows["tensor"].isin(("out", "dq"))]["ratio"]
    return Claim(statement, claim.holds and bool((right < ONE_MORE_ROUNDING).all()), claim.evidence)


def _sums_in_16_bits(rows: pd.DataFrame) -> Claim:
    statement = (
        "axolotl-ringmaster 0.2.7 adds dk and dv of its zigzag and DistFlashAttention hop by hop in bfloat16: with its"
        " own float32 blocks their error grows from 2 to 4 ranks, that of its peer-to-peer ring does not (5%)."
    )
    rows = rows[(rows["kernel"] == "eager") & (rows["dtype"] == "bfloat16") & rows["tensor"].isin(("dk", "dv"))]
    errors = rows.pivot_table(index=["variant", "tensor"], columns="world_size", values="error_rel")
    if not {2, 4} <= set(errors.columns):
        return Claim(statement, None, "needs world sizes 2 and 4")
    growth = (errors[4] / errors[2]).dropna()
    flat = growth[[name == "ringmaster_ring" for name, _ in growth.index]]
    grown = growth[[name in ("ringmaster_zigzag", "ringmaster_distflash") for name, _ in growth.index]]
    if flat.empty or grown.empty:
        return Claim(statement, None, "not measured")
    evidence = f"least growth {grown.min():.2f} ({' '.join(grown.idxmin())}), the ring's largest {flat.max():.2f}"
    return Claim(statement, bool(grown.min() > 1.05 > flat.max()), evidence)


def _nothing_else(rows: pd.DataFrame) -> Claim:
    statement = (
        "Apart from these, no package is worse than our variant of the same kind by a rounding more (1.41 times)."
    )
    rows = rows[~_known(rows) & (rows["tensor"] != "delta")]
    return largest_below(statement, rows, ONE_MORE_ROUNDING, "ratio", _where)


def _row(row: pd.Series) -> str:
    return f"{row['ratio']:.4g} times ours ({_where(row)})"


def _where(row: pd.Series) -> str:
    return f"{row['tensor']} of {row['variant']}, {row['kernel']}, {row['dtype']}, world size {row['world_size']}"
