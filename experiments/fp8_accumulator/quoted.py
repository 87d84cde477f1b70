"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "fp8_accumulator/amd-epyc"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    lost = tables.claimed(TABLE, "On values of one sign out lacks", r"65,536: -([\d.]+)%")
    return {"../FINDINGS.md": [Said("A 14-bit accumulator costs {:.2f}% of out at 65,536 keys of one sign,", lost)]}
