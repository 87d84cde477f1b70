"""Which table says each number: see accuracy/report/evidence.py."""

import runpy
from pathlib import Path

import pandas as pd

from accuracy.report.evidence import Said, Tables, lines

TABLE = "fp8_remedies/amd-epyc"
CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
BOTH, COLUMNS = CLAIMS["BOTH"], ("fp8_block", "fp8_token", "fp8_smooth", "fp8_hadamard", CLAIMS["BOTH"])
PRINTED = {  # the others are left out of the table
    "gaussian": (*COLUMNS[:4], "mxfp8", "int8", "nvfp4"),
    "outliers": ("fp8_block", "fp8_hadamard", BOTH, "mxfp8", "int8", "nvfp4"),
    "heavy_channels": ("fp8_smooth", "fp8_hadamard", "mxfp8", "int8", "nvfp4"),
}


COSTS, OTHERS = "fp8_remedies/cost-h200.csv", ("bfloat16 (flash-attn 2)",)


def _costs(tables: Tables, document: str) -> list[Said]:
    rows = pd.read_csv(tables.reports / COSTS)
    found = rows[rows["inputs"] == "outliers"].set_index("remedy")
    here = found.drop(list(OTHERS))
    dominated = [((here["ms"] < row.ms) & (here["out"] < row.out)).any() for row in here.itertuples()]
    front = dict(zip(here.index, ["" if each else "yes" for each in dominated], strict=True))
    printed = {
        name: [row["ms"], *(["", row["out"], "", ""] if pd.isna(row["dq"]) else row[["ms_both", "out", "dq", "dv"]]),
               front.get(name, "")]
        for name, row in found.iterrows() if name != "e5m2 for gradients"
    }  # fmt: skip
    tensor, turned, blocks = (found.loc[name] for name in ("a scale a tensor", "rotation", "blocks of 128 tokens"))
    costs = (turned["ms"] - tensor["ms"], tensor["ms"])
    if document == "FINDINGS":
        of_blocks = Said("blocks cost {:.2f} times the forward", (blocks["ms"] / tensor["ms"],))
        return [Said("the rotation costs {:.2f} ms of a forward of {:.2f} ms;", costs), of_blocks]
    gaussian = rows[rows["inputs"] == "gaussian"].set_index("remedy")
    triton = gaussian[~gaussian.index.str.contains(r"\(|cuDNN")]
    usual = gaussian.loc[OTHERS[0], "ms_both"]
    return [
        *lines(printed, ".2f", ".1f", ".3f"),
        Said("The rotation costs {:.2f} ms of a forward of {:.2f} ms and leaves {:.2f} times the error of out;",
             (*costs, turned["out"] / tensor["out"])),
        Said("cost {:.2f} times the forward and are on no front", (blocks["ms"] / tensor["ms"],),
             holds=not front[str(blocks.name)]),
        Said("all Triton rows have the same error of out.", holds=triton["out"].max() < 1.01 * triton["out"].min()),
        Said("A missing prescale loses {:.0%} of dv there.", (gaussian.loc["no prescale", "dv"],)),
        Said("takes {:.1f} to {:.1f} times as long as flash-attn 2 in bfloat16 (prediction 8):",
             (triton["ms_both"].min() / usual, triton["ms_both"].max() / usual)),
        Said("cuDNN takes {:.2f} times as long,", (gaussian.loc["cuDNN, a scale a tensor", "ms_both"] / usual,)),
    ]  # fmt: skip


def quoted(tables: Tables) -> dict[str, list[Said]]:
    times, rms = CLAIMS["_measured"](tables.rows(TABLE))
    held = tables.held(TABLE)
    out = {name: times["out", "outliers", name] for name in ("fp8_hadamard", "fp8_block")}
    dv = [times["dv", inputs, "fp8_no_prescale"] for inputs in ("gaussian", "heavy_channels", "outliers")]
    four = (len(held), sum(held)) == (5, 1)
    table = {
        inputs.replace("_", " "): [
            times["out", inputs, name] if name in names else "" for name in (*COLUMNS, "mxfp8", "int8", "nvfp4")
        ]
        for inputs, names in PRINTED.items()
    }
    sizes = tuple(rms["out", "outliers", name] for name in ("fp8_tensor", BOTH))
    return {
        "../FINDINGS.md": [
            *_costs(tables, "FINDINGS"),
            Said("error to {:.2f} times that of scales of tensors, block scales to {:.2f} times.", tuple(out.values())),
            Said("costs dv up to {:.1f} times the error and out nothing. Four of five predictions", dv[:1], holds=four),
        ],
        "README.md": [
            Said("to {:.2f} times that of scales of tensors, block scales to {:.2f} times.", tuple(out.values())),
            Said("costs dv up to {:.1f} times the error and out nothing:", dv[:1]),
            Said("69 cases, `accuracy", holds=tables.cases(TABLE)["ok"] == 69),
            *lines(table),
            Said(
                "lowers the error by {:.0%}, block scales alone by {:.0%}, not",
                tuple(1 - each for each in out.values()),
            ),
            Said("FlashAttention-3's RMSE of 2.4e-2 and 9.1e-3 is", source="arXiv 2407.08608, table 3"),
            *_costs(tables, "README"),
            Said("{:.1e} and {:.1e} here, at 1,024 keys and a head dim of 64:", sizes),
            Said("costs dv {:.1f}, {:.1f} and {:.1f} times the error", tuple(dv)),
        ],
    }
