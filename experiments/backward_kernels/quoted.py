"""Which table says each number: see accuracy/report/evidence.py."""

import re

import pandas as pd

from accuracy.report.evidence import Said, Tables, lines

TABLE, SPEED = "backward_kernels/nvidia-h200", "benchmark/nvidia-h200/kernels.txt"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows, held = tables.whole(TABLE), tables.held(TABLE)
    fused = rows[(rows["kernel"] == "triton_fused_backward") & (rows["tensor"] == "dq")]
    changed = fused.groupby("heads")["repeats_differ"].max()
    few, many = changed[changed.index <= 4], changed[changed.index >= 8]
    dq = rows[rows["tensor"] == "dq"].pivot_table(
        index=["dtype", "heads", "seed"], columns="kernel", values="error_rel"
    )
    apart = (dq["triton_fused_backward"] / dq["triton_split_backward"] - 1).abs().max()
    ratios = tables.claimed(TABLE, "Neither is further", r"from ([\d.]+) to ([\d.]+)")
    text = (tables.reports / SPEED).read_text().partition("over batch x heads")[2]
    ms = {(name, int(heads)): float(each) for name, heads, each in re.findall(r"(?m)^(\w+) +(\d+) +([\d.]+) ", text)}
    faster = {
        heads: ms["triton_fused_backward", heads] / ms["triton_split_backward", heads]
        for heads in sorted({h for _, h in ms})
    }
    flash = {heads: ms["flash_attn", heads] / ms["triton_split_backward", heads] for heads in (1, 64)}
    grid = pd.read_csv(tables.reports / "backward_kernels/grid.csv.gz")
    return {
        "README.md": [
            Said("168 cases, 11 runs each,", holds=tables.cases(TABLE)["ok"] == 168),
            Said("all seven claims hold:", holds=len(held) == 7 and all(held)),
            Said(
                "in {:.0f} to {:.0f} elements at 1 to 4 heads, in {:,.0f} to {:,.0f} from 8 heads on.",
                (few.min(), few.max(), many.min(), many.max()),
            ),
            Said("that of the split one to {:.3%}.", (apart,)),
            Said("have flash-attn's error to {:.1%}.", (max(1 - ratios[0], ratios[1] - 1),)),
            Said(
                "{:.2f} times faster than the fused kernel at 1 head, {:.2f} at 64.",
                (faster[1], faster[64]),
                holds=min(faster.values()) > 1,
            ),
            Said("PR #177 claims a factor of 4,", source="https://github.com/jax-ml/jax-triton/pull/177"),
            Said("flash-attn is {:.2f} times faster than the split kernels,", (1 / flash[1],)),
            Said("the split kernels are {:.2f} times faster.", (flash[64],)),
            *_grid(grid),
        ],
        "../FINDINGS.md": _found(grid),
    }


def _times(rows: pd.DataFrame) -> tuple["pd.Series[float]", pd.DataFrame]:
    """ms of the split form, and how many times as long the other forms take, by batch and length."""
    ms = rows.pivot_table(index=["batch", "length"], columns="form", values="ms")
    return ms["split"], ms.div(ms["split"], axis=0)


def _grid(rows: pd.DataFrame) -> list[Said]:
    ms, times = _times(rows)
    shown = times[["fused_by_head", "fused_by_tile", "flash_attn"]]
    sizes = [(batch, str(length)) for batch in (1, 16, 128) for length in (2048, 4096, 8192)]
    heads = {size: f"{size[0]} of {int(size[1]):,}" for size in sizes}
    heads[16, "varlen"] = "16 of many lengths, one after another"
    head, tile = times["fused_by_head"], times["fused_by_tile"]
    long = [head[1, "4096"], head[1, "8192"], head[16, "varlen"]]
    same = head.drop((16, "varlen"))
    return [
        *lines({name: [ms[size], *shown.loc[size]] for size, name in heads.items()}),
        Said("So the factor of 4 is there: at batch 1 from 4,096 tokens on,", holds=min(long) > 4 > head[1, "2048"]),
        Said("12 programs share 132 processors."),
        Said("has no advantage on this grid ({:.2f} to {:.2f}).", (tile.min(), tile.max())),
        Said("is within {:.1e} of the split form's", (rows["off"].max(),)),
        Said("those of batch 16 and 128 hold.", holds=same[16].max() < 3 and same[128].max() < 1.5),
        Said("That of batch 1 fails at 2,048 tokens, where the factor is {:.2f};", (head[1, "2048"],)),
        Said(
            "1 to 1.5 at every size, fails at {} of the {} sizes,",
            ((tile < 1).sum(), len(tile)),
            holds=tile.max() < 1.5,
        ),
    ]


def _found(rows: pd.DataFrame) -> list[Said]:
    head = _times(rows)[1]["fused_by_head"].drop((16, "varlen"))
    return [
        Said("takes {:.1f} to {:.1f} times as long at batch 1 on its grid", (head[1].min(), head[1].max())),
        Said("and {:.2f} to {:.2f} times at batch 16 and more;", (head[[16, 128]].min(), head[[16, 128]].max())),
    ]
