"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "million_tokens/nvidia-h200"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    below = tables.claimed(TABLE, "Every ring stays below 1.3", r"largest: ([\d.]+)")[0] < 1.3
    return {"../FINDINGS.md": [Said("Rings over a million tokens are as accurate as over 8,192.", holds=below)]}
