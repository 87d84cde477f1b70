"""The numbers of README.md and FINDINGS.md, from the published tables."""

import pandas as pd

from experiments.published import Tables, markdown

OURS, TORCH, FLASH = "accuracy.assert_close", "torch.testing defaults", "flash-attention 2x"


def blocks(tables: Tables) -> dict[str, str]:
    rules, faults, healthy, bounds, fused, whole = (
        tables.csv(f"tolerances/{name}")
        for name in ("rules.csv", "faults.csv", "healthy.csv.gz", "bounds.csv", "bounds-h200.csv.gz", "memory_efficient-h200.csv.gz")
    )  # fmt: skip
    of = rules.set_index("rule")
    alone = of[of["looks at"] == "out"]["caught"].str.extract(r"^(\d+)")[0].astype(int).max()
    missed = list(faults.set_index("fault").query(f"not `{OURS}`").index)
    sixteen = healthy[healthy["dtype"] != "float32"][TORCH]
    million, gpu = bounds["elements"].sum() / 1e6, fused["elements"].sum() / 1e6
    return {
        "rules": markdown(
            ("rule", "source", "looks at", "faults caught", "healthy failed", "zeros pass"),
            rules.itertuples(index=False),
        ),
        "faults": f"{len(faults)} of",
        "torch": f"{sixteen.sum()} of {len(sixteen)} results in 16 bits",
        "missed": f"{len(missed)}: {', '.join(missed)}",
        "sweep": f"{bounds['inputs'].nunique()} distributions, {bounds.groupby('inputs')['elements'].sum().max() / 1e6:.1f} million elements a distribution, {million:.0f} million in all",
        "certain": str(bounds["beyond_certain"].sum()),
        "bounds": _bounds(bounds),
        "gpu": f"{gpu:.0f} million elements",
        "gpu_certain": str(fused["beyond_certain"].sum()),
        "gpu_likely": _likely(fused),
        "gpu_median": _medians(fused),
        **_whole_kernel(whole[whole["kernel"] == "torch_efficient"]),
        **_split(tables),
        "found": f"torch.testing's defaults catch {of['caught'][TORCH]} planted faults and fail {of['healthy failed'][TORCH]} healthy results; flash-attention's rule {of['caught'][FLASH]} and {of['healthy failed'][FLASH]}; tests of the output alone at most {alone} of {len(faults)}",
        "ours": f"catches {of['caught'][OURS]} and fails {of['healthy failed'][OURS]}",
        "errors": f"Of {million:.0f} million errors of healthy kernels {bounds['beyond_certain'].sum()} are beyond their certain bound (*CPU*), of {gpu:.0f} million on an H200 {fused['beyond_certain'].sum()}",
    }


def _bounds(bounds: pd.DataFrame) -> str:
    """By distribution, elements beyond the likely bound, and the largest medians of that bound over the error."""
    lines = []
    for name, rows in bounds.groupby("inputs"):
        share = rows["elements_apart"].sum() / rows["elements"].sum()
        medians = (_short(rows[column].max()) for column in ("largest_median", "median_apart"))
        lines.append(
            (name, f"{rows['elements'].sum() / 1e6:.1f}", f"{rows['beyond_likely'].sum():,}", f"{share:.1%}", *medians)
        )
    head = ("inputs", "million elements", "beyond 1 in 10^6", "elements apart", "largest median of the others")
    return markdown((*head, "largest median of those apart"), lines)


def _short(x: float) -> str:
    if pd.isna(x):
        return "none"
    return f"{x:.1f}" if x < 1000 else f"{x:,.0f}" if x < 1e6 else f"{x:.0e}".replace("e+0", "e").replace("e+", "e")


def _likely(rows: pd.DataFrame) -> str:
    others = rows[rows["inputs"] != "index_value"]
    math = rows[(rows["inputs"] == "index_value") & (rows["kernel"] == "torch_math")]["beyond_likely"].sum()
    return f"{math:,} of torch_math on index_value, as on the CPU; in all {others['beyond_likely'].sum()} of {others['elements'].sum() / 1e6:.0f} million on the {others['inputs'].nunique()} other distributions"


def _medians(rows: pd.DataFrame) -> str:
    split = (rows["kernel"] == "torch_efficient") & (rows["dtype"] == "float32")
    most, of_split = rows[~split]["largest_median"].max(), rows[split]["largest_median"].max()
    return f"at most {most:.1f}**, of the rows not shown apart, in every kernel and dtype; torch_efficient in float32 has up to {of_split:.1f}"


def _whole_kernel(own: pd.DataFrame) -> dict[str, str]:
    """torch_efficient on an H200 beside the emulation of all its steps."""
    of = own.groupby(["dtype", "tensor"])[["equal", "elements"]].sum()
    alike = of["equal"] / of["elements"]
    half = own[own["dtype"] == "float16"].groupby(["tensor", "inputs"])["beyond_rounded"].sum()
    half = ", ".join(f"{count} of {tensor} on {inputs}" for (tensor, inputs), count in half[half > 0].items())
    most, beyond = own.groupby("dtype")["median"].max(), own[["beyond_certain", "beyond_likely"]].sum()
    return {
        "whole": f"{own['elements'].sum() / 1e6:.1f} million elements",
        "whole_medians": f"at most {most['float32']:.1f} in float32, {most['float16']:.1f} in float16) and the two bounds ({beyond.iloc[0]} beyond the certain one, {beyond.iloc[1]} beyond the other",
        "whole_equal": f"{alike['float32', 'dk']:.0%} of dk equal the emulation's to the bit, not half, and {alike['float32', 'dv']:.0%} of dv. In float16 {half} are beyond",
    }


def _split(tables: Tables) -> dict[str, str]:
    """torch_efficient's lse in float32, and an emulation of its scores."""
    rows = tables.csv("tolerances/three_tf32.csv").set_index(["kernel", "inputs"])
    own, emulation = rows.loc["torch_efficient"], rows.loc["emulation"]
    name, mean = "rising_maxima", -rows["mean"]
    return {
        "lse": f"{own['beyond_float32'][name]:.0f} of {own['elements'][name]:,.0f} elements",
        "scores": f"{own['equal_one_key'].sum():,} of {own['elements'].sum():,} on {len(own)} distributions",
        "lse_emulated": f"{emulation['beyond_float32'][name]:.0f} are beyond; both are {mean['emulation', name]:.1f} units of 2^-24 too small in the mean ({mean['emulation', 'gaussian']:.1f} and {mean['torch_efficient', 'gaussian']:.1f} on Gaussian inputs)",
        "lse_now": f"{rows['beyond_split'].sum():.0f} are beyond, and the median of the bound over the error is {own['median'][name]:.1f}",
    }
