"""Which table says each number: see accuracy/report/evidence.py."""

import runpy
from pathlib import Path

from accuracy.report.evidence import Said, Tables, lines

TABLE = "fp8_remedies/amd-epyc"
CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
BOTH, COLUMNS = CLAIMS["BOTH"], ("fp8_block", "fp8_token", "fp8_smooth", "fp8_hadamard", CLAIMS["BOTH"])
PRINTED = {  # the others are left out of the table
    "gaussian": (*COLUMNS[:4], "mxfp8", "int8", "nvfp4"),
    "outliers": ("fp8_block", "fp8_hadamard", BOTH, "mxfp8", "int8", "nvfp4"),
    "heavy_channels": ("fp8_smooth", "fp8_hadamard", "mxfp8", "int8", "nvfp4"),
}


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
            Said("{:.1e} and {:.1e} here, at 1,024 keys and a head dim of 64:", sizes),
            Said("costs dv {:.1f}, {:.1f} and {:.1f} times the error", tuple(dv)),
        ],
    }
