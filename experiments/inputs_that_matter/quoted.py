"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "inputs_that_matter/nvidia-h200"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    ring = tables.claimed(
        TABLE, "Times single device's, a ring's out", r"gaussian ([\d.]+) to ([\d.]+), others ([\d.]+) to ([\d.]+)"
    )
    return {
        "../FINDINGS.md": [
            Said("A ring's out has {:.2f} to {:.2f} times single device's error on Gaussian inputs", ring[:2]),
            Said("{:.1f} to {:.1f} times where attention is trained or has a sink;", ring[2:]),
            Said(
                "worst on values of one sign, {:.0f} times.",
                tables.claimed(TABLE, "llama3's dk and dv are", r"^([\d.]+)"),
            ),
        ]
    }
