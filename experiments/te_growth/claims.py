"""What te_growth claims of 16-bit accumulators in TransformerEngine's context parallelism, checked on its table."""

import pandas as pd

from accuracy.results.table import ALL_RANKS
from accuracy.verdict.growth import Growth, fit_growth
from experiments.claim import KEYS, Claim, largest_below, over_ranks

RING, GATHER, HEADS = "te_p2p", "te_all_gather", "te_a2a"
TENSORS, SUMS = ("out", "dq", "dk", "dv"), ("dk", "dv")
FROM = 16  # ranks, from which exponents are fitted
RANGES = {("out", 64): (3.7, 4.9), ("out", 256): (7.0, 10.0), ("dk", 256): (9.0, 14.0), ("dv", 256): (9.0, 14.0)}
SQUARE_ROOT, GATHERED = (0.4, 0.6), (0.35, 0.65)
JUMP = 1.6
AS_ONE_DEVICE, SAME_DIGITS, FLOAT32 = 0.02, 0.001, 1.5
HALVES_ALIKE, SLIGHTLY, NOTHING = 0.1, 0.1, 0.01
AS_WRITTEN, WRITTEN_FROM = (1.3, 1.5), 64
OUT, DQ = "out_accumulator=accumulate", "dq_accumulator=accumulate"
DKV = "dkv_accumulator=accumulate"
DKV_WIRE = f"{DKV},gradient_wire=accumulate"
ALL, WRITTEN = f"{OUT},{DQ},{DKV_WIRE}", "merge=rescaled_twice"


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[results["tensor"].isin(TENSORS) & results["x_single_device"].notna() & (results["world_size"] > 1)]
    worst, whole = over_ranks(rows, "max"), _mean(rows[rows["rank"] == ALL_RANKS])
    ring = _of(worst, RING)
    return [
        _ranges(ring),
        _exponents(f"From {FROM} ranks on te_p2p grows as a square root on the worst rank.", ring, SQUARE_ROOT),
        _no_jump(ring),
        _within(
            "te_all_gather's out and dq are single device's, to 2%.", _of(whole, GATHER, ("out", "dq")), AS_ONE_DEVICE
        ),
        _exponents(
            f"From {FROM} ranks on te_all_gather's dk and dv grow as a square root.", _of(whole, GATHER, SUMS), GATHERED
        ),
        _within("te_a2a is single device, to 0.1%.", _of(whole, HEADS), SAME_DIGITS),
        largest_below("zigzag stays below 1.5 times single device on every rank.", _of(worst, "zigzag"), FLOAT32),
        _alike("float16 has bfloat16's ratios, to 10%.", ring),
        largest_below("Float32 out alone: out below 1.5.", _of(worst, RING, ("out",), OUT), FLOAT32),
        _changes("Float32 out alone: dq, dk and dv change by less than 10%.", worst, OUT, ("dq", *SUMS), SLIGHTLY),
        largest_below("Float32 dq alone: dq below 1.5.", _of(worst, RING, ("dq",), DQ), FLOAT32),
        _changes("Float32 sums of dk and dv, sent in 16 bits, change nothing by 1%.", worst, DKV, SUMS, NOTHING),
        largest_below("Float32 sums of dk and dv, sent so: below 1.5.", _of(worst, RING, SUMS, DKV_WIRE), FLOAT32),
        largest_below("Float32 throughout: out, dq, dk and dv below 1.5.", _of(worst, RING, TENSORS, ALL), FLOAT32),
        _written(worst),
    ]  # fmt: skip


def answer(results: pd.DataFrame) -> list[Claim]:
    """Return the claims of the README's Answer, as this table judges them."""
    rows = results[results["tensor"].isin(TENSORS) & results["x_single_device"].notna() & (results["world_size"] > 1)]
    worst, whole = over_ranks(rows, "max"), _mean(rows[rows["rank"] == ALL_RANKS])
    ring = _of(worst, RING)
    return [
        _reaches(ring, {64: 4.3, 256: 8.4}),
        _exponents("It grows as a square root on the worst rank.", ring, SQUARE_ROOT),
        largest_below(
            "Float32 throughout: out, dq, dk and dv below 1.5 times.", _of(worst, RING, TENSORS, ALL), FLOAT32
        ),
        _exponents("all_gather's dk and dv grow as a square root.", _of(whole, GATHER, SUMS), GATHERED),
        largest_below("a2a stays below 1.5 times.", _of(worst, HEADS), FLOAT32),
    ]


def _reaches(ring: pd.DataFrame, sizes: dict[int, float]) -> Claim:
    said = " and ".join(f"{times:g} times at {size} ranks" for size, times in sizes.items())
    out = ring[ring["tensor"] == "out"].groupby("world_size")["x_single_device"].max()
    if not {*sizes} <= {*out.index}:
        return Claim(f"On the worst rank out has {said}.", None, "not measured")
    holds = all(round(out[size], 1) == times for size, times in sizes.items())
    return Claim(f"On the worst rank out has {said}.", holds, ", ".join(f"{out[size]:.2f}" for size in sizes))


def _mean(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby(list(KEYS), as_index=False)["x_single_device"].mean()


def _of(rows: pd.DataFrame, variant: str, tensors: tuple[str, ...] = TENSORS, precision: str = "") -> pd.DataFrame:
    return rows[(rows["variant"] == variant) & (rows["precision"] == precision) & rows["tensor"].isin(tensors)]


def _ranges(ring: pd.DataFrame) -> Claim:
    said = ", ".join(f"{name} {low:g} to {high:g} at {size}" for (name, size), (low, high) in RANGES.items())
    statement = f"te_p2p on the worst rank, times single device: {said} ranks."
    found = {
        (name, size): ring.loc[(ring["tensor"] == name) & (ring["world_size"] == size), "x_single_device"]
        for name, size in RANGES
    }
    if any(values.empty for values in found.values()):
        return Claim(statement, None, "not measured")
    holds = all(values.between(*RANGES[place]).all() for place, values in found.items())
    evidence = ", ".join(
        f"{name} {values.min():.2f} to {values.max():.2f} at {size}" for (name, size), values in found.items()
    )
    return Claim(statement, bool(holds), evidence)


def _exponents(statement: str, rows: pd.DataFrame, allowed: tuple[float, float]) -> Claim:
    found = {}
    for key, group in rows[rows["world_size"] >= FROM].groupby(["tensor", "dtype"]):
        fit = fit_growth(zip(group["world_size"], group["x_single_device"], strict=True))
        if isinstance(fit, Growth):
            found[" in ".join(map(str, key))] = fit.exponent
    if not found:
        return Claim(statement, None, f"fewer than three world sizes from {FROM} on")
    low, high = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
    holds = allowed[0] <= found[low] and found[high] <= allowed[1]
    return Claim(statement, holds, f"exponents from {found[low]:.3f} ({low}) to {found[high]:.3f} ({high})")


def _no_jump(ring: pd.DataFrame) -> Claim:
    statement = f"From one world size to the next te_p2p's worst rank grows by less than {JUMP} times."
    by_size = ring.set_index(list(KEYS))["x_single_device"].unstack("world_size")
    steps = by_size.pct_change(axis=1).iloc[:, 1:] + 1
    if steps.empty:
        return Claim(statement, None, "not measured")
    return Claim(statement, bool(steps.max().max() < JUMP), f"largest: {steps.max().max():.2f}")


def _within(statement: str, rows: pd.DataFrame, bound: float) -> Claim:
    rows = rows.assign(away=(rows["x_single_device"] - 1).abs())
    return largest_below(statement, rows, bound, "away")


def _alike(statement: str, ring: pd.DataFrame) -> Claim:
    both = ring.set_index(list(KEYS))["x_single_device"].unstack("dtype")
    if not {"bfloat16", "float16"} <= {*both.columns}:
        return Claim(statement, None, "not measured in both")
    apart = float((both["float16"] / both["bfloat16"] - 1).abs().max())
    return Claim(statement, apart <= HALVES_ALIKE, f"farthest apart: {apart:.1%}")


def _beside_published(worst: pd.DataFrame, precision: str, tensors: tuple[str, ...]) -> pd.DataFrame:
    keys = [key for key in KEYS if key != "precision"]
    both = _of(worst, RING, tensors).merge(_of(worst, RING, tensors, precision), on=keys, suffixes=("", "_changed"))
    return both.assign(ratio=both["x_single_device_changed"] / both["x_single_device"])


def _changes(statement: str, worst: pd.DataFrame, precision: str, tensors: tuple[str, ...], bound: float) -> Claim:
    both = _beside_published(worst, precision, tensors).assign(variant=RING)
    return largest_below(statement, both.assign(change=(both["ratio"] - 1).abs()), bound, "change")


def _written(worst: pd.DataFrame) -> Claim:
    low, high = AS_WRITTEN
    statement = f"As written, out is {low:g} to {high:g} times the compiled one's from {WRITTEN_FROM} ranks on."
    both = _beside_published(worst, WRITTEN, ("out",))
    ratio = both.loc[both["world_size"] >= WRITTEN_FROM, "ratio"]
    if ratio.empty:
        return Claim(statement, None, "not measured")
    return Claim(statement, bool(ratio.between(low, high).all()), f"{ratio.min():.3f} to {ratio.max():.3f}")
