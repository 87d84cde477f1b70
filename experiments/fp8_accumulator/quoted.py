"""Which table says each number: see accuracy/report/evidence.py."""

import runpy
from pathlib import Path

from accuracy.report.evidence import Said, Tables, lines

TABLE = "fp8_accumulator/amd-epyc"
CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))


SPEED = "benchmark/nvidia-h200/fp8.txt"
LINES = {  # of README's table of times: of the text
    "flash-attn 2, bfloat16": "flash-attn 2 bfloat16",
    "never flushed, 128 keys a tile": "triton_fp8 fp8_hopper, 128 keys a tile",
    "flushed every 128 keys, 128 a tile": "triton_fp8 fp8_hopper_flush, 128 keys a tile",
    "never flushed, 64 keys a tile": "triton_fp8 fp8_hopper, 64 keys a tile",
    "flushed every 128 keys, 64 a tile": "triton_fp8 fp8_hopper_flush, 64 keys a tile",
    "behind each instruction, 64 a tile": "triton_fp8 fp8_tensor, 64 keys a tile",
    "scales of blocks, 64 a tile": "triton_fp8 fp8_block, 64 keys a tile", "cuDNN's e4m3": "cuDNN e4m3",
}  # fmt: skip


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows, held = CLAIMS["_rows"](tables.rows(TABLE)), tables.held(TABLE)
    never, sums = (CLAIMS["_bias"](rows, policy) for policy in ("fp8_hopper", CLAIMS["SUMS_ALONE"]))
    chosen = rows[(rows["tensor"] == "out") & (rows["inputs"] == "uniform") & (rows["flush"] > 0)]
    flushed = chosen[chosen["policy"] == "fp8_hopper"].groupby("flush")["bias"].mean()[[8192, 2048, 512, 128]]
    costs = Said("costs {:.1%} of out at 65,536 keys of one sign", (-never[65536],), holds=held[0])
    exact, short = (CLAIMS["_of"](rows, "out", "uniform", policy) for policy in ("fp8_tensor", "fp8_hopper"))
    (change,) = tables.claimed(TABLE, "Without P's prescale", r"out: ([\d.]+)%")
    (seen,) = tables.claimed(TABLE, "On Gaussian inputs", r"65,536: ([\d.]+)%")
    sixteenth = 15.5 < never[65536] / sums[65536] < 17
    return {
        "../FINDINGS.md": [costs, *_times(tables, "FINDINGS")],
        "README.md": [
            costs,
            Said("96 cases, `accuracy", holds=tables.cases(TABLE)["ok"] == 96),
            *lines({f"{size:,}": [f"{never[size]:.2%}", "", "", "", ""] for size in (1024, 4096, 16384)}),
            *lines({"65,536": [f"{never[65536]:.2%}", *flushed]}, ".3%"),
            Said("out falls from {:.1e} at 1,024 keys to {:.1e} at 65,536,", (exact[1024], exact[65536])),
            Said("with 14 bits it grows from {:.1e} to {:.1e} (predictions", (short[1024], short[65536])),
            Said("changes the error of out by at most {:.1f}%.", (seen,)),
            Said("out by {:.1f}% at most,", (change,)),
            Said("loses {:.2%} at 4,096, {:.2%} at 16,384 and {:.2%} at 65,536 keys: a sixteenth",
                 tuple(-sums[size] for size in (4096, 16384, 65536)), holds=sixteenth),
            *_times(tables, "README"),
        ],
    }  # fmt: skip


def _times(tables: Tables, document: str) -> list[Said]:
    number = r"\s+([\d.]+) ms\s+\d+ TFLOP/s\s+([\d.]+)"
    found = {name: tables.text(SPEED, rf"(?s){line}{number}.*causal.*{line}{number}") for name, line in LINES.items()}
    if document == "FINDINGS":
        full, _, causal = found["flushed every 128 keys, 128 a tile"][1:]
        return [
            Said(
                "{:.2f} times flash-attn 2's rate in bfloat16 with a full mask and {:.2f} times causal", (full, causal)
            )
        ]
    casts = tables.text(SPEED, r"(?s)casts of q, k and v\s+([\d.]+) ms.*copy\s+([\d.]+) ms")
    return [
        *lines(found, ".3f", ".2f", ".3f", ".2f"),
        Said("Casts of q, k and v take {:.3f} ms beside that, the transposed copy of v {:.3f} ms.", casts),
    ]
