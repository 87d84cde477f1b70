"""What remedies claims about policies of precision, checked against its table: a policy is a precision and a kernel."""

import pandas as pd

from experiments.claim import Claim, largest_below, over_ranks, place_of

PUBLISHED, CARRIED = "triton_split_backward", "triton_carry"
OUT_PARTIALS = "partial=accumulate"
PARTIALS = "partial=accumulate,gradient_partial=accumulate"
GRADIENTS = "gradient_partial=accumulate"
COMPENSATED = "merge=compensated"
WIRE = "dkv_accumulator=accumulate,gradient_wire=accumulate"
THROUGHOUT = "partial=accumulate,gradient_partial=accumulate,dkv_accumulator=accumulate,gradient_wire=accumulate"
LAST = "ring_order=diagonal_last"
SINGLE_DEVICE = 1.02  # times single device's error: what is called as good as one device
RINGS = ("ring", "zigzag")
GRADIENT_TENSORS = ("dq", "dk", "dv")


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] == -1) & results["tensor"].notna() & (results["world_size"] > 1)]
    rings = rows[rows["variant"].isin(RINGS)]
    carried = rings[(rings["kernel"] == CARRIED) & (rings["precision"] == GRADIENTS)]
    llama3, hybrid = (rows[rows["variant"] == name] for name in ("llama3", "llama3_ring"))
    return [
        largest_below(
            "Float32 out partials bring a ring's out to single device's, within 2%.",
            _of(rings, OUT_PARTIALS, ("out",)),
            SINGLE_DEVICE,
        ),
        largest_below(
            "Float32 partials bring out, dq, dk and dv of a ring to single device's, within 2%.",
            _of(rings, PARTIALS, ("out", *GRADIENT_TENSORS)),
            SINGLE_DEVICE,
        ),
        largest_below(
            "Carried accumulators bring a ring's out to single device's, within 2%.",
            carried[carried["tensor"] == "out"],
            SINGLE_DEVICE,
        ),
        _unchanged("A compensated merge changes nothing by 1%.", rings, COMPENSATED),
        _unchanged("The order of the ring changes nothing by 3%.", rings, LAST, 0.03),
        largest_below(
            "Float32 sums and wires bring dk and dv of llama3 below 1.3 times single device.",
            _of(llama3, WIRE, ("dk", "dv")),
            1.3,
        ),
        largest_below(
            "Float32 throughout brings out, dq, dk and dv of llama3 to single device's, within 2%.",
            _of(llama3, THROUGHOUT, ("out", *GRADIENT_TENSORS)),
            SINGLE_DEVICE,
        ),
        largest_below(
            "llama3_ring's out is single device's as it is, within 2%.", _of(hybrid, "", ("out",)), SINGLE_DEVICE
        ),
    ]


def answer(results: pd.DataFrame) -> list[Claim]:
    """What README's Answer says: the claims, and how far off the rings are as published."""
    rows = results[results["variant"].isin(RINGS) & (results["precision"] == "") & (results["kernel"] != CARRIED)]
    rows = rows[rows["tensor"].isin(("out", *GRADIENT_TENSORS)) & (rows["world_size"] > 1)]
    worst = over_ranks(rows, "max")["x_single_device"]
    statement = "As published the error on the worst rank is 1.2 to 1.3 times, of each of out, dq, dk and dv."
    found = f"{worst.min():.2f} to {worst.max():.2f}"
    return [*claims(results), Claim(statement, bool(worst.between(1.15, 1.35).all()), found)]


def _of(rows: pd.DataFrame, precision: str, tensors: tuple[str, ...]) -> pd.DataFrame:
    return rows[(rows["precision"] == precision) & (rows["kernel"] != CARRIED) & rows["tensor"].isin(tensors)]


def _unchanged(statement: str, rows: pd.DataFrame, precision: str, bound: float = 0.01) -> Claim:
    keys = ["variant", "dtype", "world_size", "seed", "tensor"]
    plain = rows[(rows["precision"] == "") & rows["tensor"].isin(("out", *GRADIENT_TENSORS))]
    both = plain.merge(rows[rows["precision"] == precision], on=keys, suffixes=("", "_changed"))
    if both.empty:
        return Claim(statement, None, "not measured")
    change = (both["error_rel_changed"] / both["error_rel"] - 1).abs()
    worst = both.loc[change.idxmax()]
    return Claim(statement, bool(change.max() <= bound), f"largest change: {change.max():.1%} ({place_of(worst)})")
