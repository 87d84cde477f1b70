"""The table of README.md, from the published answers."""

import re
from collections import Counter

import pandas as pd

from experiments.published import Tables, markdown


def blocks(tables: Tables) -> dict[str, str]:
    rows = tables.csv("zoo/nvidia-h200.csv").fillna("")
    answered = rows[rows["label"] != "failed"]
    healthy, planted = answered[answered["fault"] == ""], answered[answered["fault"] != ""]
    measured = healthy[healthy["label"] != "not_measured"]
    pairs = Counter((row.kernel, dtype) for row in measured.itertuples() for dtype in row.dtypes.split())
    once = sorted({kernel for (kernel, _), times in pairs.items() if times == 1})
    of = measured.groupby("kernel", sort=False)
    accused = {kernel for kernel, same in of if same["is_bug"].any()}
    # A race's out is labelled nondeterministic, which is none of the labels of bugs that right_tensor counts.
    differs = (planted["fault"] == "race") & planted["sentence"].str.startswith("out differs")
    right = planted["is_bug"].astype(bool) & (planted["right_tensor"].astype(bool) | differs)
    lines = [
        (kernel, same["package"].iloc[0], same["dtypes"].iloc[0].replace(" ", ", "), same["label"].iloc[0],
         same["x_floor"].iloc[0].replace(" ", ", "), f"{same['seconds'].min():.0f}")
        for kernel, same in of
    ]  # fmt: skip
    faults = [(fault, len(same), int(same.sum())) for fault, same in right.groupby(planted["fault"], sort=False)]
    power = tables.csv("zoo/power.csv")
    power = power.assign(found=power["found"].astype(bool))
    smallest = [
        (fault, *(_least(same, found) for found in (True, False))) for fault, same in power.groupby("fault", sort=False)
    ]
    return {
        "power": markdown(["fault", "smallest found", "largest not found"], smallest),
        "sage": _sage((tables.reports / "zoo/sage_lengths.txt").read_text()),
        "kernels": markdown(["kernel", "package", "dtypes", "label", "error over the rounding floor", "s"], lines),
        "faults": markdown(["fault", "kernels", "found, with its tensor"], faults),
        "pairs": f"{len(pairs)} (kernel, dtype) pairs",
        "once": f"; once of {' and '.join(once)}, whose other question had no answer in 240 s" if once else "",
        "accused": ", ".join(sorted(accused)) or "none",
        "found": f"{right.sum()} of {len(planted)}",
    }


def _sage(text: str) -> str:
    """sageattention's relative errors without a causal mask, by length: where 128 divides it, and where not."""
    errors: dict[int, float] = {}
    for line in text.splitlines():
        if "causal=False" in line:
            found = re.findall(r"\(\d+, ([\d.]+)\)", line)
            errors[int(line.split()[0])] = sum(map(float, found)) / len(found)
    whole = [error for length, error in errors.items() if length % 128 == 0]
    others = ", ".join(f"{error:.3f} at {length}" for length, error in errors.items() if length % 128)
    return f"{others} tokens from float64, relatively, and {min(whole):.3f} to {max(whole):.3f} at multiples of 128"


def _least(rows: pd.DataFrame, found: bool) -> str:
    """The smallest size of a fault that was found, or the largest that was not."""
    sizes = rows.loc[rows["found"] == found, "size"]
    return "" if sizes.empty else f"{sizes.min() if found else sizes.max():.6g}"
