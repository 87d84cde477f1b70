"""Which table says each number: see accuracy/report/evidence.py."""

import re

from accuracy.report.evidence import Said, Tables

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
        ]
    }
