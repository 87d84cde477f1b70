"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "packages_and_kernels/nvidia-h200-x2"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    between = tables.claimed(TABLE, "Where a package has no fault", r"between packages ([\d.]+)%")
    return {"../FINDINGS.md": [Said("are within {:.1f}% of our variants in dk and dv;", between)]}
