"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "te_real_ranks/nvidia-h200-x2"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    more = tables.claimed(
        TABLE,
        "Float32 accumulators and wires take te_p2p at 2 ranks at most 1.1 times the time",
        r"bfloat16 ([\d.]+), float16 ([\d.]+)",
    )
    return {
        "../FINDINGS.md": [Said("for at most {:.2f} times the time.", (max(more),))],
    }
