"""Which table says each number: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.package.twins import OURS
from accuracy.report.evidence import Said, Tables, lines
from accuracy.results.claim import beside
from accuracy.verdict.verdict import verdicts

TABLE, TENSORS = "packages_and_kernels/nvidia-h200-x2", ["out", "dq", "dk", "dv"]
KERNELS = {
    "Triton, eager": ["triton_split_backward", "eager"],
    "flash_attn, torch_flash, torch_cudnn": ["flash_attn", "torch_flash", "torch_cudnn"],
    "torch_efficient": ["torch_efficient"],
}
CAST = ["ring_flash_attn_ring", "yunchang_ring"]


def quoted(tables: Tables) -> dict[str, list[Said]]:
    between = tables.claimed(TABLE, "Where a package has no fault", r"between packages ([\d.]+)%")
    rows = tables.whole(TABLE)
    return {
        "../FINDINGS.md": [Said("are within {:.1f}% of our variants in dk and dv;", between)],
        "README.md": [*_table(rows), *_prose(tables, rows)],
    }


def _table(rows: pd.DataFrame) -> list[Said]:
    rows = rows[(rows["dtype"] == "bfloat16") & (rows["inputs"] == "gaussian")]
    floors = rows.groupby(["variant", "kernel", "tensor"])["x_floor"].mean().unstack()[TENSORS]
    table, apart = {}, 0.0
    for schedule in ("ring", "zigzag", "striped", "llama3", "ulysses"):
        for at, (label, kernels) in enumerate(KERNELS.items()):
            those = floors.loc[schedule].loc[kernels]
            apart = max(apart, (those.max() / those.min() - 1).max())
            table[f"{'' if at else schedule} | {label}{' ' * len(table)}"] = those.mean()
    return [Said("means over the kernels of a row, which agree to {:.1%}:", (apart,)), *lines(table)]


def _prose(tables: Tables, rows: pd.DataFrame) -> list[Said]:
    equal, compared = tables.claimed(TABLE, "On one kernel", r"^(\d+) of (\d+) rows equal")
    (out,) = tables.claimed(TABLE, "In one schedule", r"at most ([\d.]+)")
    later = tables.claimed(TABLE, "Kernels that round", r"^([\d.]+) to ([\d.]+) times")
    least, most = tables.claimed(TABLE, "Where a package", r"kernels ([\d.]+)%, .* packages ([\d.]+)%")
    cases, held, both = tables.cases(TABLE), tables.held(TABLE), beside(rows, OURS)
    rounded = both["variant"].isin(CAST) & (both["tensor"] == "dq") & (both["dtype"] == "float16")
    llama3 = (both["ours"] == "llama3") & both["tensor"].isin(["dk", "dv"])
    packed = (both["variant"] == "ring_flash_attn_llama3") & (both["kernel"] == "flash_attn")
    away = (both[~rounded & ~llama3 & ~(packed & (both["tensor"] == "lse"))]["ratio"] - 1).abs()
    gaussian = rows[(rows["inputs"] == "gaussian") & (rows["dtype"] == "bfloat16") & (rows["tensor"] == "dq")]
    dq = gaussian.groupby(["kernel", "variant"])["error_rel"].mean().unstack("kernel")
    dq = dq["torch_efficient"] / dq["triton_split_backward"]
    floors = both[rounded & (both["inputs"] == "gaussian")]
    floor = floors["floor_rel"]
    judged = verdicts(tables.rows(TABLE))
    called = judged[judged["label"] == "precision_floor"]
    exactly = called["variant"].isin(CAST).all() and (called["tensor"] == "dq").all()
    return [
        Said("{} cases measured, none unsupported, none failed, {:.0f} seconds",
             (cases["ok"], tables.seconds(TABLE)), holds=cases.sum() == cases["ok"]),
        Said("{:.0f} of {:,.0f} rows of packages equal ours", (equal, compared)),
        Said("all to {:.1%}.", (away.max(),)),
        Said("{} of the {:.0f} others differ by less than 1e-4", (away.between(1e-300, 1e-4).sum(), compared - equal)),
        Said("have {:.2f} to {:.2f} times the Triton kernel's error,", later),
        Said("also {:.2f} to {:.2f} times its dq.", (dq.min(), dq.max())),
        Said("is the same to {:.1%} for all fused", (out - 1,)),
        Said("dk and dv by {:.1f}% at least,", (least,)),
        Said("by {:.1f}% at most.", (most,)),
        Said("Three of four claims hold. The third asked for 1.1 times in *every* ring:"),
        Said("dk of striped on outliers has {:.2f}.",
             later[:1], holds=(sum(held), len(held)) == (3, 4)),
        Said("({:.1f} floors, ours {:.2f})",
             ((floors["error_rel"] / floor).mean(), (floors["error_of_ours"] / floor).mean())),
        Said("exactly these, {} of {:,} subjects,", (len(called), len(judged)), holds=exactly),
    ]  # fmt: skip
