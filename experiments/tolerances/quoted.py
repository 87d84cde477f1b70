"""Which table says each number: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables

RULES, BOTH = "tolerances/rules.csv", ["flash-attention 2x", "TransformerEngine CP"]


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rules = pd.read_csv(tables.reports / RULES).set_index("rule")
    caught, failed = rules["caught"], rules["healthy failed"]
    alone = rules[rules["looks at"] == "out"]["caught"].str.extract(r"^(\d+)")[0].astype(int)
    bounds = pd.read_csv(tables.reports / "tolerances/bounds.csv")
    fused = pd.read_csv(tables.reports / "tolerances/bounds-h200.csv.gz")
    return {
        "../FINDINGS.md": [
            Said(
                "torch.testing's defaults catch {} planted faults and fail {} healthy results;",
                (caught["torch.testing defaults"], failed["torch.testing defaults"]),
            ),
            Said("flash-attention's rule {} and {};", (caught["flash-attention 2x"], failed["flash-attention 2x"])),
            Said("tests of the output alone at most {} of 103.", (alone.max(),)),
            Said("catches {} and fails {}.", (caught["accuracy.assert_close"], failed["accuracy.assert_close"])),
            Said(
                "Of {:.0f} million errors of healthy kernels none is beyond",
                (bounds["elements"].sum() / 1e6,),
                holds=bounds["beyond_certain"].sum() == 0,
            ),
            Said(
                "of {:.0f} million on an H200 none either.",
                (fused["elements"].sum() / 1e6,),
                holds=fused["beyond_certain"].sum() == 0,
            ),
        ],
        "README.md": [*_rules(tables, rules), *_bounds(bounds), *_on_a_gpu(tables)],
    }


def _rules(tables: Tables, rules: pd.DataFrame) -> list[Said]:
    ours, healthy = "accuracy.assert_close", pd.read_csv(tables.reports / "tolerances/healthy.csv.gz")
    faults = pd.read_csv(tables.reports / "tolerances/faults.csv").set_index("fault")
    missed = list(faults.index[~faults[ours]])
    sixteen = healthy[healthy["dtype"] != "float32"]["torch.testing defaults"]
    sets = int(healthy["inputs"].nunique())
    return [
        *(Said(f"| {row['looks at']} | {row['caught']} | {row['healthy failed']} | {row['zeros pass']} |")
          for _, row in rules.iterrows()),
        Said("Faults: {} of `accuracy", (len(faults),), holds=sets == 5),
        Said("the former {} of {} results in 16 bits,", (sixteen.sum(), len(sixteen))),
        Said(f"misses {len(missed)}: {', '.join(missed)}."),
        Said("flash-attention 3, 2x + atol"),
        Said("| cosine > 0.99 |"),
        Said("do catch factors of 1.01 (in float16),", holds=faults.loc["factor_out", BOTH].all()),
        Said("a factor of 1 + 2^-10 on out,"),
    ]  # fmt: skip


def _bounds(bounds: pd.DataFrame) -> list[Said]:
    million = bounds.groupby("inputs")["elements"].sum() / 1e6
    likely = bounds.groupby("inputs")["beyond_likely"].sum()
    beyond = bounds[bounds["beyond_likely"] > 6]
    only = (*beyond["inputs"], *beyond["kernel"], *beyond["dtype"]) == ("index_value", "torch_math", "float32")
    only &= beyond["elements_apart"].equals(beyond["elements"])
    plain = bounds.groupby("inputs")["largest_median"].max()
    return [
        Said("on {} distributions, {:.1f} million elements a distribution, {:.0f} million in all.",
             (len(million), million.max(), million.sum())),
        Said("certain bound: {}.", (bounds["beyond_certain"].sum(),)),
        Said("1 in 10^6 may exceed: 0 on {} distributions; {} of {:.1f} million on peaked, where {:.1f} would be",
             ((likely == 0).sum(), likely["peaked"], million["peaked"], million["peaked"])),
        Said("within 1 in 10^6; {:,} of {:.1f} million on index_value,", (likely.max(), million["index_value"]),
             holds=only),
        Said("(values are +-1 in runs, and partial sums of equal terms reach 1/2 where the result is 0:"),
        Said("**at most {:.1f} in every setting** of the {} distributions", (plain.max(), plain.notna().sum())),
        Said("from the inputs alone: (1) tied, at least"),
        Said("(2) P is one-hot to the last bit of the inputs' dtype, 1 - max P <= u,"),
        Said("(3) of lse, at least half of its largest score's additions are exact in float32."),
        Said("or exactly 0."),
        Said("Rows apart stay above 15 for two reasons", holds=bounds["median_apart"].max() > 15 >= plain.max()),
        *(_apart(name, rows) for name, rows in bounds.groupby("inputs")),
    ]  # fmt: skip


def _apart(name: str, rows: pd.DataFrame) -> Said:
    share = 100 * rows["elements_apart"].sum() / rows["elements"].sum()
    medians = tuple(_short(rows[column].max()) for column in ("largest_median", "median_apart"))
    return Said(f"| {name} | " + "{:.1f}% | {} | {} |", (share, *medians))


def _short(x: float) -> str:
    if pd.isna(x):
        return "none"
    return f"{x:.1f}" if x < 1000 else f"{x:,.0f}" if x < 1e6 else f"{x:.0e}".replace("e+0", "e").replace("e+", "e")


def _on_a_gpu(tables: Tables) -> list[Said]:
    rows = pd.read_csv(tables.reports / "tolerances/bounds-h200.csv.gz")
    million, others = rows["elements"].sum() / 1e6, rows[rows["inputs"] != "index_value"]
    likely = rows[rows["beyond_likely"] > 0].set_index(["kernel", "inputs", "dtype"])["beyond_likely"]
    math = likely.pop(("torch_math", "index_value", "float32"))
    split = (rows["kernel"] == "torch_efficient") & (rows["dtype"] == "float32")
    medians = (rows[~split]["largest_median"].max(), rows[split]["largest_median"].max())
    rate = (others["beyond_likely"].sum(), others["elements"].sum() / 1e6, others["inputs"].nunique())
    return [
        Said("H200, torch 2.11, flash-attn 2.8.3, ten kernels in their dtypes", holds=rows["kernel"].nunique() == 10),
        Said("{:.0f} million elements:", (million,)),
        Said("**Beyond the certain bound: {}.** torch_efficient has", (rows["beyond_certain"].sum(),)),
        Said(
            "1 in 10^6 may exceed: {:,} of torch_math on index_value, as on the CPU; at most {} of {:.2f} million in",
            (math, likely.max(), rows["elements"].max() / 1e6),
        ),
        Said("In all {} of {:.0f} million on the {} other distributions, fewer than {:.0f}.",
             (*rate, rate[1])),
        Said("error: at most {:.1f}**, of the rows not shown apart,", medians[:1]),
        Said("torch_efficient in float32 has up to {:.1f}.", medians[1:]),
        *_whole_kernel(tables),
        *_split(tables),
    ]  # fmt: skip


def _whole_kernel(tables: Tables) -> list[Said]:
    """torch_efficient on an H200 beside the emulation of all its steps."""
    rows = pd.read_csv(tables.reports / "tolerances/memory_efficient-h200.csv.gz")
    own = rows[rows["kernel"] == "torch_efficient"]
    of = own.groupby(["dtype", "tensor"])[["equal", "elements", "beyond_rounded"]].sum()
    alike = of["equal"] / of["elements"]
    half = own[own["dtype"] == "float16"].groupby(["tensor", "inputs"])["beyond_rounded"].sum()
    most = own.groupby("dtype")["median"].max()
    beyond = own[["beyond_certain", "beyond_likely"]].sum()
    return [
        Said("{:.1f} million elements, the sweep above;", (own["elements"].sum() / 1e6,)),
        Said("(at most {:.1f} in float32, {:.1f} in float16)", (most["float32"], most["float16"])),
        Said("({} beyond the certain one, {} beyond the other).", tuple(beyond)),
        Said("{:.0%} of dk equal the emulation's to the bit, not half, and {:.0%} of dv.",
             (alike["float32", "dk"], alike["float32", "dv"])),
        Said("In float16 {} of dk on peaked and {} of dq on one_hot are beyond `policy.kernel`, none of lse.",
             (half["dk", "peaked"], half["dq", "one_hot"]),
             holds=half.sum() == half["dk", "peaked"] + half["dq", "one_hot"]),
    ]  # fmt: skip


def _split(tables: Tables) -> list[Said]:
    rows = pd.read_csv(tables.reports / "tolerances/three_tf32.csv").set_index(["inputs", "kernel"])
    own, mine = (rows.xs(kernel, level="kernel") for kernel in ("torch_efficient", "emulation"))
    rising, mean = own.loc["rising_maxima"], -rows["mean"].unstack()[["emulation", "torch_efficient"]]
    alike = mean.loc["rising_maxima"].round(1).nunique() == 1
    return [
        Said("was beyond the bound of sums in float32 in {} of {:,} elements,",
             (int(rising["beyond_float32"]), int(rising["elements"]))),
        Said("to the bit**, {:,} of {:,} on five distributions;", (own["equal_one_key"].sum(), own["elements"].sum()),
             holds=len(own) == 5),
        Said("lse {} are beyond; both are {:.1f} units of 2^-24 too small in the mean ({:.1f} and {:.1f}",
             (mine.loc["rising_maxima", "beyond_float32"], mean.loc["rising_maxima"].mean(), *mean.loc["gaussian"]),
             holds=alike),
        Said("none is beyond, and the median of the bound over the error is {:.1f}.", (rising["median"],),
             holds=rows["beyond_split"].eq(0).all()),
    ]  # fmt: skip
