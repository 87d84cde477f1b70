"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "fp8_ring/amd-epyc"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    pattern = r"dk \S+ to ([\d.]+), dq \S+ to ([\d.]+), dv \S+ to ([\d.]+), out \S+ to ([\d.]+)"
    largest = max(
        max(tables.claimed(TABLE, start, pattern)) for start in ("A ring adds at most 5%", "A ring adds at most 10%")
    )
    return {
        "../FINDINGS.md": [Said("A ring has at most {:.2f} times single device's error up to 64 ranks,", (largest,))]
    }
