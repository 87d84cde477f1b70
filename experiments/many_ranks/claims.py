"""What many_ranks predicted of published packages at 2 to 32 real ranks, checked against its table."""

import numpy as np
import pandas as pd

from experiments.claim import Claim, beside, largest_below, over_ranks

ADDED_IN_16_BITS = (
    "transformer_engine_p2p", "transformer_engine_all_gather", "ring_flash_attn_llama3", "ringmaster_ring",
    "ringmaster_zigzag",
)  # fmt: skip
ROUNDED = ("out", "dq", "dk", "dv")
FLOAT32_SUMS = (
    "ring_flash_attn_ring", "ring_flash_attn_zigzag", "ring_flash_attn_stripe", "ring_flash_attn_llama3_ring",
    "yunchang_ring", "yunchang_zigzag", "yunchang_stripe", "yunchang_hybrid", "torch_context_parallel_allgather",
    "torch_context_parallel_alltoall_balanced", "torch_context_parallel_public",
)  # fmt: skip
IN_FLOAT32 = ("ring_attention_pytorch_ring", "ring_attention_pytorch_striped")
TWINS = {
    "transformer_engine_all_gather": "te_all_gather", "ring_flash_attn_ring": "ring",
    "ring_flash_attn_zigzag": "zigzag", "ring_flash_attn_llama3": "llama3",
}  # fmt: skip
PREDICTED = 32  # ranks, in bfloat16: 64 ranks and float16 were measured later, without a prediction
NOTHING = "not measured"


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["status"] == "ok") & results["tensor"].isin(ROUNDED)]
    rows = rows[(rows["heads_kv"] == rows["heads"]) & (rows["mask"] == "causal") & (rows["world_size"] <= PREDICTED)]
    ranks = rows[rows["rank"] >= 0]
    alone = ranks[ranks["variant"].isin(IN_FLOAT32)]
    rows, ranks = (each[each["dtype"] == "bfloat16"] for each in (rows, ranks))
    kept = ranks[ranks["variant"].isin(FLOAT32_SUMS)]
    a2a = ranks[ranks["variant"].isin(("transformer_engine_a2a", "yunchang_ulysses"))]
    a2a = a2a.assign(apart=(a2a["x_single_device"] - 1).abs())
    return [
        _near_twin(ranks),
        *(_same(rows, package, twin) for package, twin in TWINS.items()),
        largest_below("What exchanges heads is within 0.2% of single device on every rank.", a2a, 0.002, "apart"),
        largest_below(
            "Packages with float32 sums stay below 1.5 times single device on every rank in bfloat16.", kept, 1.5
        ),
        largest_below("ring-attention-pytorch stays below 1.5 times single device in float32.", alone, 1.5),
        _grows(ranks),
    ]


def _near_twin(ranks: pd.DataFrame) -> Claim:
    worst = ranks.groupby(["variant", "world_size", "tensor", "seed"])["x_single_device"].max()
    own, twin = (worst.get(name, pd.Series(dtype=float)) for name in ("transformer_engine_p2p", "te_p2p"))
    apart = (own / twin - 1).abs().dropna() if len(own) and len(twin) else pd.Series(dtype=float)
    text = (
        "TransformerEngine's ring has its twin's error on the worst rank within 1%, at every number of ranks and seed."
    )
    return Claim(text, bool(apart.max() < 0.01), f"{apart.max():.2%}") if len(apart) else Claim(text, None, NOTHING)


def _same(rows: pd.DataFrame, package: str, twin: str) -> Claim:
    both = beside(rows.assign(world="", sums=""), {package: twin})  # the twin is in one process
    differ = int((both["error_rel"] != both["error_of_ours"]).sum())
    text = f"{package} has {twin}'s error in every digit."
    return Claim(text, not differ, f"{differ} of {len(both)} rows differ") if len(both) else Claim(text, None, NOTHING)


def _grows(ranks: pd.DataFrame) -> Claim:
    worst = over_ranks(ranks[ranks["variant"].isin(ADDED_IN_16_BITS) & (ranks["tensor"] == "dk")], "max")
    found = {}
    for name, group in worst[worst["world_size"] >= 8].groupby("variant"):
        mean = group.groupby("world_size")["x_single_device"].mean()
        if len(mean) > 1:
            found[name] = float(np.polyfit(np.log(mean.index), np.log(mean), 1)[0])
    text = "Where 16 bits are kept or added, dk grows as a power of 0.3 to 0.65 of the ranks from 8 on."
    if len(found) < len(ADDED_IN_16_BITS):
        return Claim(text, None, NOTHING)
    fine = all(0.3 < power < 0.65 for power in found.values())
    return Claim(text, fine, ", ".join(f"{name} {power:.2f}" for name, power in found.items()))
