"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

CPU = "bpt_backward/amd-epyc"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    held = next(each for each in tables.judged(CPU) if "dq's mean diff on ranks 1 to 7 is within 1%" in each.statement)
    return {
        "../FINDINGS.md": [
            Said("the mean diffs are within 1% of the issue's,", holds=bool(held.holds)),
            Said("rank 0's within 3% given a cast of dq to bfloat16.", source="experiments/bpt_backward/README.md"),
        ]
    }
