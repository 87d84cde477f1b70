"""Which table says each number: see accuracy/report/evidence.py."""

import math
import runpy
from pathlib import Path

from accuracy.report.evidence import Said, Tables, lines

GPU, CPU = "bpt_backward/nvidia-h200", "bpt_backward/amd-epyc"
CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
ISSUE = "https://github.com/zhuzilin/ring-flash-attention/issues/24"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    within = next(each for each in tables.judged(CPU) if "ranks 1 to 7 is within 1%" in each.statement)
    factor, off = tables.claimed(GPU, "After one common factor", r"factor ([\d.]+), at most ([\d.]+)%")
    printed, gpu = CLAIMS["ISSUE_DQ"], CLAIMS["_profile"](tables.rows(GPU), "dq")
    cpu = {name: CLAIMS["_profile"](tables.rows(CPU), name) for name in ("dq", "dk", "dv")}
    cases, held = tables.cases(GPU), tables.held(GPU)
    remedied = tables.claimed(GPU, "The same ring without the buffer", r"at most ([\d.]+) times")
    text = {"dq, the issue's": [_short(each) for each in printed]}
    return {
        "../FINDINGS.md": [
            Said("the mean diffs are within 1% of the issue's,", holds=bool(within.holds)),
            Said("rank 0's within 3% given a cast of dq to bfloat16.", source="experiments/bpt_backward/README.md"),
        ],
        "README.md": [
            Said("{} cases, [table]", (cases["ok"],), holds=not cases["failed"]),
            Said("all six claims hold.", holds=len(held) == 6 and all(held)),
            *lines(
                {
                    "here": ["right", *gpu[1:]],
                    f"the issue's, times {factor:.2f}": ["right", *(each * factor for each in printed[1:])],
                    "the issue's ": ["right", *(f"{each:.4f}" for each in printed[1:])],
                },
                ".4f",
            ),
            Said("The two are at most {:.1f}% apart", (off,)),
            Said("stays within {:.2f} times single device's error in every tensor.", remedied),
            Said("its mean lse, 9.20424, does:", source=ISSUE),
            Said(
                "rows have {:.3f} at 16,384 tokens and {:.3f} at 8,192", tuple(math.log(n) - 0.5 for n in (16384, 8192))
            ),
            *lines({f"{name}, here": [_short(each) for each in diffs] for name, diffs in cpu.items()}),
            *lines(text),
            Said("has {:.0f} times our diff in the issue.", (printed[0] / cpu["dq"][0],)),
        ],
    }


def _short(diff: float) -> str:
    return f"{diff:.4f}" if diff > 1e-3 else f"{diff:.1e}".replace("e-0", "e-")
