"""Which table says each number: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables, lines

TABLE, TENSORS = "memory_efficient/nvidia-h200", ["out", "dq", "dk", "dv"]
PRINTED = {"plain": {1024: 16.5, 512: 4.25, 127: 0.31}, "efficient": {1024: 0.63, 512: 0.31, 127: 0.08}}  # MB
INPUTS = {"torch.rand": "high=1.0,low=0.0", "N(0, 1)": "std=1.0", "N(0, 4^2)": "std=4.0"}


def quoted(tables: Tables) -> dict[str, list[Said]]:
    in_float32 = [claim.holds for claim in tables.judged(TABLE) if claim.statement.startswith("In float32, inputs")]
    bound = Said(
        "bound of 1e-5 in float32 holds on its inputs at every size, and on N(0, 4^2) at none.",
        holds=len(in_float32) == 4 and all(in_float32),
    )
    shapes = _shapes(tables)
    return {
        "../FINDINGS.md": [bound, *_found(tables), *shapes[:2]],
        "README.md": [*_table(tables), *_prose(tables), *_cost(tables), *shapes[2:]],
    }


def _table(tables: Tables) -> list[Said]:
    rows = tables.whole(TABLE)
    rows = rows[rows["tensor"].isin(TENSORS)]
    tf32 = rows["kernel_options"].str.contains("tf32=True")
    kind = pd.Series("chunked, eager", rows.index)
    kind = kind.mask(rows["kernel"] == "torch_efficient", "efficient").mask(tf32, "TF32")
    most = rows.groupby([rows["inputs_options"], kind.rename("kind"), rows["seqlen"], rows["kernel"]])[
        "error_max"
    ].max()
    ends = most.groupby(level=[0, 1]).agg(["min", "max"])

    def cells(options: str) -> list[str]:
        found = [tuple(ends.loc[(options, name)]) for name in ("chunked, eager", "efficient", "TF32")]
        return [" to ".join(_short(each) for each in pair) for pair in found]

    return lines({name: cells(options) for name, options in INPUTS.items()})


def _short(size: float) -> str:
    return f"{size:.1e}".replace("e-0", "e-") if size < 0.1 else f"{size:.1f}"


def _prose(tables: Tables) -> list[Said]:
    cases, rows = tables.cases(TABLE), tables.whole(TABLE)
    (alone,) = tables.claimed(TABLE, "With TF32, inputs as torch.rand, out is beyond", r"smallest: ([\d.e-]+)")
    most = rows[rows["kernel_options"].str.contains("tf32=True") & (rows["inputs_options"] == INPUTS["torch.rand"])]
    times = most[most["tensor"].isin(TENSORS)].groupby(["seqlen", "kernel"])["error_max"].max() / 1e-5
    held = all(claim.holds for claim in tables.judged(TABLE)[:3])
    return [
        Said("the reviewer was right: 1e-5 holds in float32,", holds=held),
        Said("the error is 10 to 20 times that at", holds=times.between(10, 20).all()),
        Said("the error of out is within 1e-5 at some sizes", holds=alone < 1e-5),
        Said("{} measured, none failed;", (cases["ok"],), holds=not cases["failed"]),
        Said("({:.1e} at length 127, head dim 32:", (alone,)),
        Said("has {:.2f} to {:.1f} times the error of `chunked`",
             tables.claimed(TABLE, "torch_efficient's relative error", r"from ([\d.]+) to ([\d.]+)")),
    ]  # fmt: skip


def _found(tables: Tables) -> list[Said]:
    less, faster, _ = _ratios(tables)
    long = less[less.index >= 1023]
    return [
        Said("{:.1f} to {:.1f} times at a head dim of 32 from 1,023", (long[32].min(), long[32].max())),
        Said(
            "and {:.1f} times at most at 256; it is faster than plain products at the shortest length only.",
            (less[256].max(),),
            holds=faster.loc[127].min() > 1 > faster.loc[513:].max().max(),
        ),
    ]


def _ratios(tables: Tables) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """How many times less memory and time torch_efficient takes than eager (plain products), float32, by length and
    head dim; and torch_efficient's bytes."""
    rows = tables.rows(TABLE).drop_duplicates("case_id")
    rows = rows[(rows["status"] == "ok") & ~rows["kernel_options"].str.contains("tf32=True")]
    keys = ["seqlen", "head_dim", "kernel"]
    least = rows.groupby(keys)[["peak_bytes", "seconds"]].min().unstack("kernel")
    less = (least["peak_bytes"]["eager"] / least["peak_bytes"]["torch_efficient"]).unstack("head_dim")
    faster = (least["seconds"]["eager"] / least["seconds"]["torch_efficient"]).unstack("head_dim")
    return less, faster, least["peak_bytes"]["torch_efficient"].reset_index()


def _cost(tables: Tables) -> list[Said]:
    less, faster, efficient = _ratios(tables)
    table = {f"{length:,} ": [*less.loc[length], *faster.loc[length]] for length in less.index}
    lse = 4 * 2 * efficient["seqlen"] / efficient["torch_efficient"]
    long = less[less.index >= 1023]
    return [
        *lines(table, ".1f", ".1f", ".1f", ".1f", ".2f"),
        Said(
            "'10x+ less memory' holds at a head dim of 32 from 1,023 tokens on, and at 256 at no length",
            holds=long[32].min() > 10 and less[256].max() < 10,
        ),
        Said("less than 1% of the kernel's memory at a head dim of 32 and more.", holds=lse.max() < 0.01),
    ]


def _shapes(tables: Tables) -> list[Said]:
    """The pull request's own shapes: plain products over torch's kernel, forward and backward, and lse's cost; first
    what FINDINGS says of them."""
    table = pd.read_csv(tables.reports / "memory_efficient/cost.csv.gz")
    ms, peak = (
        table.pivot_table(index=["batch", "length", "head_dim"], columns=["way", "form"], values=name)
        for name in ("ms", "peak_mib")
    )
    less = {way: peak[way]["plain"] / peak[way]["efficient"] for way in ("both", "forward")}
    faster = ms["both"]["plain"] / ms["both"]["efficient"]
    cells = {
        f"{batch} of {length:,}": [
            *(f"{peak['both'][form][batch, length, 16]:,.2f}" for form in ("plain", "efficient")),
            *(f"{less['both'][batch, length, dim]:.1f}" for dim in (16, 32)),
            *(f"{faster[batch, length, dim]:.2f}" for dim in (16, 32)),
        ]
        for batch in (1, 256)
        for length in (127, 512, 1024)
    }
    over = {
        form: [peak["both"][form][1, length, 16] / each for length, each in printed.items()]
        for form, printed in PRINTED.items()
    }
    wide, narrow = (less["both"].xs(dim, level="head_dim").groupby("length") for dim in (32, 16))
    slower = faster[256].groupby("length").max()
    kept, none = (ms["forward"][f"efficient, {name}"] for name in ("lse kept", "no lse"))
    longer = kept / none - 1
    lse = peak["forward"]["efficient, lse kept"] - peak["forward"]["efficient, no lse"]
    rows = lse.index.to_frame()
    padded = 4 * rows["batch"] * ((rows["length"] + 31) // 32 * 32) / 2**20  # MiB
    most = max(1 - end(over[form]) for form in over for end in (min, max))
    return [
        Said("its printed memory is reproduced to {:.0%};", (most,)),
        Said("the kernel is {:.2f} to {:.2f} times as fast.", (faster.min(), faster.max())),
        *lines(cells),
        Said(
            "Plain products take {:.2f} to {:.2f} times and torch's kernel {:.2f} to {:.2f} times what it prints "
            "(16.5, 4.25 and 0.31 MB; 0.63, 0.31 and 0.08).",
            tuple(end(over[form]) for form in over for end in (min, max)),
            source="https://github.com/facebookresearch/xformers/pull/281",
        ),
        Said(
            "from 512 tokens on at a head dim of 16, from 1,023 on at 32, and at 127 tokens at neither.",
            holds=narrow.min().loc[512:].min() > 10 > wide.max().loc[:513].max()
            and wide.min().loc[1023:].min() > 10 > narrow.max()[127],
        ),
        Said("takes {:.1f} to {:.1f} times less.", (less["forward"].min(), less["forward"].max())),
        Said("{:.2f} to {:.2f} times as fast over all {} shapes,", (faster.min(), faster.max(), len(faster))),
        Said("the median over the shapes is {:.1%} of the forward;", (longer.median(),)),
        Said("in {} of {} shapes it is above 5%,", ((longer > 0.05).sum(), len(longer))),
        Said("so that '18% faster' has no one answer."),
        Said("4 bytes a row, padded to 32 rows, as predicted.", holds=(padded - lse).abs().max() < 0.0015),
        Said(
            "slower at a batch of 256 from 512 tokens on, and faster in {} of {} shapes at a batch of 1.",
            ((faster[1] > 1).sum(), len(faster[1])),
            holds=slower.loc[512:].max() < 1,
        ),
        Said("That of at most 5% for lse fails in small calls.", holds=none[longer > 0.05].max() < 0.1),
    ]
