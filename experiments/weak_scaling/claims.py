"""What weak_scaling predicts of errors where each rank keeps its tokens, checked against its table."""

import pandas as pd

from accuracy.results.table import ALL_RANKS
from accuracy.verdict.growth import Growth, fit_growth
from experiments.claim import KEYS, Claim, largest_below, over_ranks

TENSORS, SUMS = ("out", "dq", "dk", "dv"), ("dk", "dv")
RING, GATHERED, FLOAT32 = "te_p2p", ("llama3", "te_all_gather"), ("ring", "zigzag")
TORCH, TWIN = "torch_context_parallel_alltoall_balanced", "zigzag"
SERIES = [*KEYS, "tokens"]
FROM = 16  # ranks, from which exponents are fitted
OUT = {2: 1.23, 4: 1.46, 8: 1.79, 16: 2.32, 32: 3.10, 64: 4.26, 128: 5.94, 256: 8.36}  # te_growth, worst rank


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[results["tensor"].isin(TENSORS) & results["x_single_device"].notna()]
    rows = rows.assign(tokens=rows["seqlen"] // rows["world_size"])  # of a rank
    worst, whole = over_ranks(rows, "max", SERIES), together(rows)
    ring, gathered = worst[worst["variant"] == RING], whole[whole["variant"].isin(GATHERED)]
    sums = worst[worst["variant"].isin(GATHERED) & worst["tensor"].isin(SUMS)]
    kept = worst[worst["variant"].isin(FLOAT32)]
    exact = gathered[~gathered["tensor"].isin(SUMS)]
    exact = exact.assign(away=(exact["x_single_device"] - 1).abs())
    return [
        _predicted(ring),
        _exponents("te_p2p on the worst rank", ring, (0.40, 0.52)),
        _exponents("te_p2p over all ranks together", whole[whole["variant"] == RING], (0.30, 0.45)),
        _alike(worst),
        largest_below("ring and zigzag stay below 1.4 times single device on every rank.", kept, 1.4),
        largest_below("llama3's and te_all_gather's out and dq are single device's, to 2%.", exact, 0.02, "away"),
        _exponents("dk and dv of llama3 and te_all_gather on the worst rank", sums, (0.35, 0.55)),
        _torch(worst),
    ]


def together(rows: pd.DataFrame) -> pd.DataFrame:
    """Of all ranks together, mean over seeds: the columns of SERIES and `x_single_device`."""
    whole = rows[rows["rank"] == ALL_RANKS]
    return whole.groupby(SERIES, as_index=False, dropna=False)["x_single_device"].mean()


def exponents(rows: pd.DataFrame) -> dict[str, Growth]:
    """By variant, tensor and tokens a rank, of those with three sizes from FROM ranks on."""
    long = rows[rows["world_size"] >= FROM]
    found = {
        f"{variant} {tensor}, {tokens:,} a rank": fit_growth(
            zip(group["world_size"], group["x_single_device"], strict=True)
        )
        for (variant, tensor, tokens), group in long.groupby(["variant", "tensor", "tokens"])
    }
    return {name: each for name, each in found.items() if isinstance(each, Growth)}


def _predicted(ring: pd.DataFrame) -> Claim:
    statement = "te_p2p's out on the worst rank has te_growth's ratios within 8%, whatever a rank's tokens."
    out = ring[(ring["tensor"] == "out") & ring["world_size"].isin(OUT)]
    away = (out["x_single_device"] / out["world_size"].map(OUT) - 1).abs()
    return Claim(statement, bool(away.max() < 0.08) if len(away) else None, f"of {len(away)} at most {away.max():.1%}")


def _exponents(what: str, rows: pd.DataFrame, allowed: tuple[float, float]) -> Claim:
    low, high = allowed
    statement = f"From {FROM} ranks on {what}: a power of {low:.2f} to {high:.2f} of the ranks."
    found = exponents(rows)
    if not found:
        return Claim(statement, None, f"fewer than three world sizes from {FROM} on")
    holds = all(low <= each.exponent <= high for each in found.values())
    return Claim(statement, holds, "; ".join(f"{name}: {each.text}" for name, each in found.items()))


def _alike(worst: pd.DataFrame) -> Claim:
    statement = "At the same number of ranks the tokens of a rank change no ratio by 5%, on the worst rank."
    both = worst.set_index(SERIES)["x_single_device"].unstack("tokens")
    both = both[both.count(axis=1) > 1]
    if both.empty:
        return Claim(statement, None, "not measured with two numbers of tokens")
    apart = both.max(axis=1) / both.min(axis=1) - 1
    return Claim(statement, bool(apart.max() < 0.05), f"of {len(apart)} at most {apart.max():.1%}")


def _torch(worst: pd.DataFrame) -> Claim:
    statement = "torch's context parallelism has zigzag's error on the worst rank within 1%."
    by_variant = worst.drop(columns="half").set_index(SERIES)["x_single_device"].unstack("variant")
    if not {TORCH, TWIN} <= {*by_variant.columns}:
        return Claim(statement, None, "not measured")
    apart = (by_variant[TORCH] / by_variant[TWIN] - 1).abs().dropna()
    return Claim(statement, bool(apart.max() < 0.01), f"of {len(apart)} at most {apart.max():.2%}")
