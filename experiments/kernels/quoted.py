"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLES = "kernels/nvidia-h200", "kernels/nvidia-h200-flash-attn-4"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    least = min(tables.claimed(name, "dk and dv of", r"from ([\d.]+)")[0] for name in TABLES)
    others = max(tables.claimed(name, "dk and dv of", r"others to ([\d.]+)")[0] for name in TABLES)
    return {
        "../FINDINGS.md": [
            Said("have on average 1.7 times the rounding floor or more there,", holds=least >= 1.7),
            Said("flash-attn 4 less than 1.5 times.", holds=others < 1.5),
        ]
    }
