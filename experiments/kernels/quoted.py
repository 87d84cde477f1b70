"""Which table says each number: see accuracy/report/evidence.py."""

import runpy
from pathlib import Path

import pandas as pd

from accuracy.report.evidence import Said, Tables, lines

TABLES = TABLE, LATER = "kernels/nvidia-h200", "kernels/nvidia-h200-flash-attn-4"
CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
TENSORS = ["out", "dq", "dk", "dv", "lse"]


def quoted(tables: Tables) -> dict[str, list[Said]]:
    least = min(tables.claimed(name, "dk and dv of", r"from ([\d.]+)")[0] for name in TABLES)
    others = max(tables.claimed(name, "dk and dv of", r"others to ([\d.]+)")[0] for name in TABLES)
    return {
        "../FINDINGS.md": [
            Said("have on average 1.7 times the rounding floor or more there,", holds=least >= 1.7),
            Said("flash-attn 4 less than 1.5 times.", holds=others < 1.5),
        ],
        "README.md": [
            Said("stay within 2.2 times the least", holds=all(tables.answer(TABLE))),
            Said(
                "of each query head to 16 bits before they sum a group's (1.7 times the rounding floor",
                holds=least >= 1.7,
            ),
            Said("do not (below 1.5 times)", holds=others < 1.5),
            *_first(tables),
            *_later(tables),
        ],
    }


def _first(tables: Tables) -> list[Said]:
    rows, cases = tables.whole(TABLE), tables.cases(TABLE)
    rows = rows[~rows["kernel"].isin(CLAIMS["EIGHT_BITS"])]
    means = _means(rows)
    apart = (_means(rows, "float16") - means).abs().max()
    float32 = rows[rows["dtype"] == "float32"].groupby(["kernel", "tensor"])["error_rel"].max().unstack()
    triton = float32[float32.index.str.startswith("triton")]
    beyond = float32[float32[["out", "dq", "dk", "dv"]].max(axis=1) > 2**-20]
    return [
        Said("{} measured, {} unsupported, none failed;", (cases["ok"], cases["unsupported"]), cases["failed"] == 0),
        Said("(float16 is the same to {:.2f}, lse to {:.1f};", (apart.drop("lse").max(), apart["lse"])),
        *lines({
            **{name: means.loc[name] for name in ("torch_math", "chunked", "eager")},
            "triton_carry, triton_split_backward, triton_fused_backward": means.loc["triton_carry"],
            "flex_attention": means.loc["flex_attention"],
            "flash_attn, torch_flash": means.loc["flash_attn"],
            "torch_cudnn": means.loc["torch_cudnn"],
            "torch_efficient": means.loc["torch_efficient"],
            "jax_nn": means.loc["jax_nn"],
            "jax_pallas": means.loc["jax_pallas"],
        }, ".2f", ".2f", ".2f", ".2f", ".1f"),
        Said("relative error is {:.1e} (dk of flex_attention).", (float32.max().max(),)),
        Said("dk has {:.1f} floors,", (means.loc["torch_efficient", "dk"],)),
        Said(
            "(dk and dv of flex_attention {:.1e}, of the three Triton kernels {:.1e}, against {:.1e})",
            (float32.loc["flex_attention"].max(), triton.max().max(), 2**-20),
            holds=len(beyond) == 4,
        ),
        Said("took sums over 1,000 keys for sums over 64."),
    ]  # fmt: skip


def _later(tables: Tables) -> list[Said]:
    rows, cases = tables.whole(LATER), tables.cases(LATER)
    means = _means(rows[rows["head_dim"].isin([64, 128])])
    return [
        Said("{} measured, none failed;", (cases["ok"],), holds=cases["failed"] == 0),
        *lines({"flash_attn_4": means.loc["flash_attn_4"], "flash_attn, torch_flash": means.loc["flash_attn"]},
               ".2f", ".2f", ".2f", ".2f", ".1f"),
    ]  # fmt: skip


def _means(rows: pd.DataFrame, dtype: str = "bfloat16") -> pd.DataFrame:
    return rows[rows["dtype"] == dtype].groupby(["kernel", "tensor"])["x_floor"].mean().unstack()[TENSORS]
