"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "split_kv/nvidia-h200"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    largest = tables.claimed(TABLE, "With partials in 16 bits", r"384: ([\d.]+)")
    return {"../FINDINGS.md": [Said("at most {:.2f} times single device's error with these,", largest)]}
