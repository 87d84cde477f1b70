"""Which table says each number: see accuracy/report/evidence.py."""

import runpy
from pathlib import Path

from accuracy.report.evidence import Said, Tables, lines

TABLE = "fp8_accumulator/amd-epyc"
CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows, held = CLAIMS["_rows"](tables.rows(TABLE)), tables.held(TABLE)
    never = CLAIMS["_bias"](rows, "fp8_hopper")
    chosen = rows[(rows["tensor"] == "out") & (rows["inputs"] == "uniform") & (rows["flush"] > 0)]
    flushed = chosen[chosen["policy"] == "fp8_hopper"].groupby("flush")["bias"].mean()[[8192, 2048, 512, 128]]
    lost = (-never[65536],)
    exact, short = (CLAIMS["_of"](rows, "out", "uniform", policy) for policy in ("fp8_tensor", "fp8_hopper"))
    (change,) = tables.claimed(TABLE, "Without P's prescale", r"out: ([\d.]+)%")
    return {
        "../FINDINGS.md": [Said("A 14-bit accumulator costs {:.2%} of out at 65,536 keys of one sign,", lost)],
        "README.md": [
            Said("A 14-bit accumulator costs {:.2%} of out at 65,536 keys of one sign,", lost, holds=held[0]),
            Said("88 cases, `accuracy", holds=tables.cases(TABLE)["ok"] == 88),
            *lines({f"{size:,}": [f"{never[size]:.2%}", "", "", "", ""] for size in (4096, 16384)}),
            *lines({"65,536": [f"{never[65536]:.2%}", *flushed]}, ".3%"),
            Said("out falls from {:.1e} at 1,024 keys to {:.1e} at 65,536,", (exact[1024], exact[65536])),
            Said("with 14 bits it grows from {:.1e} to {:.1e} (predictions", (short[1024], short[65536])),
            Said("every 128 keys is the {:.1e} of the casts, so the predicted 0.1% was", (exact[65536],)),
            Said("out by {:.1f}% at most,", (change,)),
            Said("14 bits cut off after 32 products are DeepSeek-V3's", source="arXiv 2412.19437"),
        ],
    }
