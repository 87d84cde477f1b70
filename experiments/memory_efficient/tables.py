"""The numbers of README.md and FINDINGS.md, from the published tables."""

import pandas as pd

from experiments.published import TENSORS, Tables, cells, chosen, markdown, span

TABLE, COST = "memory_efficient/nvidia-h200", "memory_efficient/cost.csv.gz"
PRINTED = {"plain": {1024: 16.5, 512: 4.25, 127: 0.31}, "efficient": {1024: 0.63, 512: 0.31, 127: 0.08}}  # MB
INPUTS = {"torch.rand": "high=1.0,low=0.0", "N(0, 1)": "std=1.0", "N(0, 4^2)": "std=4.0"}
BOUND = 1e-5


def blocks(tables: Tables) -> dict[str, str]:
    rows = chosen(tables.rows(TABLE), status="ok")
    less, faster = _ratios(rows)
    return {
        "cases": f"{rows['case_id'].nunique()} measured",
        "errors": _errors(chosen(rows, rank=-1, tensor=TENSORS)),
        "claims": tables.claims(TABLE),
        "uniform": _uniform(chosen(rows, rank=-1, tensor=TENSORS)),
        "less": f"{span(less[32].loc[1023:], '.1f')} times at a head dim of 32 from 1,023 tokens on, and {less[256].max():.1f} times at most at 256",
        "costs": markdown(
            ("length", "memory, head dim 32", "64", "128", "256", "speed, 32", "64", "128", "256"),
            (
                (
                    f"{length:,}",
                    *cells(less.loc[length], less.columns, ".1f"),
                    *cells(faster.loc[length], faster.columns),
                )
                for length in less.index
            ),
        ),
        **_shapes(tables.csv(COST)),
    }


def _uniform(rows: pd.DataFrame) -> str:
    rows = chosen(rows, inputs_options=INPUTS["torch.rand"])
    coarse = rows["kernel_options"].str.contains("tf32=True")
    own = rows["kernel"] == "torch_efficient"
    kernel, plain, wide = (_short(each["error_max"].max()) for each in (rows[own], rows[~own & ~coarse], rows[coarse]))
    return f"{kernel} in torch's kernel, {plain} in plain float32 products, {wide} in TF32"


def _errors(rows: pd.DataFrame) -> str:
    """Largest errors over tensors and head dims: from the least to the most of lengths and kernels."""
    kind = rows["kernel"].map(lambda name: "efficient" if name == "torch_efficient" else "plain")
    kind = kind.mask(rows["kernel_options"].str.contains("tf32=True"), "TF32")
    most = rows.groupby([rows["inputs_options"], kind.rename("kind"), rows["seqlen"], rows["kernel"]])[
        "error_max"
    ].max()
    ends = most.groupby(level=[0, 1]).agg(["min", "max"])
    lines = []
    for name, options in INPUTS.items():
        found = [ends.loc[(options, each)] for each in ("plain", "efficient", "TF32")]
        fine, coarse = (all(each["max"] < BOUND for each in some) for some in (found[:2], found[2:]))
        said = "fails everywhere" if not fine else f"holds in float32, {'holds' if coarse else 'fails'} with TF32"
        lines.append((name, *(" to ".join(map(_short, each)) for each in found), said))
    return markdown(("inputs", "chunked, eager", "torch_efficient", "with TF32", "1e-5"), lines)


def _short(size: float) -> str:
    return f"{size:.1e}".replace("e-0", "e-") if size < 0.1 else f"{size:.1f}"


def _ratios(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How many times less memory and time torch_efficient takes than eager (plain products), by length and head dim."""
    rows = rows.drop_duplicates("case_id")
    rows = rows[~rows["kernel_options"].str.contains("tf32=True")]
    least = rows.groupby(["seqlen", "head_dim", "kernel"])[["peak_bytes", "seconds"]].min().unstack("kernel")
    less, faster = (
        (least[name]["eager"] / least[name]["torch_efficient"]).unstack("head_dim")
        for name in ("peak_bytes", "seconds")
    )
    return less, faster


def _shapes(table: pd.DataFrame) -> dict[str, str]:
    """The pull request's own shapes: plain products over torch's kernel, forward and backward, and lse's cost."""
    ms, peak = (
        table.pivot_table(index=["batch", "length", "head_dim"], columns=["way", "form"], values=name)
        for name in ("ms", "peak_mib")
    )
    less = {way: peak[way]["plain"] / peak[way]["efficient"] for way in ("both", "forward")}
    faster = ms["both"]["plain"] / ms["both"]["efficient"]
    lines = [
        (
            f"{batch} of {length:,}",
            *(f"{peak['both'][form][batch, length, 16]:,.2f}" for form in ("plain", "efficient")),
            *(f"{less['both'][batch, length, dim]:.1f}" for dim in (16, 32)),
            *(f"{faster[batch, length, dim]:.2f}" for dim in (16, 32)),
        )
        for batch in (1, 256)
        for length in (127, 512, 1024)
    ]
    over = {
        form: [peak["both"][form][1, length, 16] / each for length, each in printed.items()]
        for form, printed in PRINTED.items()
    }
    longer = ms["forward"]["efficient, lse kept"] / ms["forward"]["efficient, no lse"] - 1
    off = max(abs(1 - each) for some in over.values() for each in some)
    own = [f"{span(less['both'].xs(n, level='length'), '.1f')} times at {n:,} tokens" for n in (127, 512, 1024)]
    return {
        "own": ", ".join(own),
        "shapes": markdown(
            ("batch and tokens", "plain, MiB", "kernel, MiB", "memory, head dim 16", "32", "time, 16", "32"), lines
        ),
        "printed": f"Plain products take {span(over['plain'])} times and torch's kernel {span(over['efficient'])} times what it prints",
        "forward": f"takes {span(less['forward'], '.1f')} times less",
        "time": f"{span(faster)} times as fast over all {len(faster)} shapes",
        "lse": f"the median over the shapes is {longer.median():.1%} of the forward; in {(longer > 0.05).sum()} of {len(longer)} shapes it is above 5%",
        "alone": f"faster in {(faster[1] > 1).sum()} of {len(faster[1])} shapes at a batch of 1",
        "reproduced": f"its printed memory is reproduced to {off:.0%}; the kernel is {span(faster)} times as fast",
    }
