"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "regression/nvidia-h200"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    shown = tables.claimed(TABLE, "With this as the baseline", r"noisiest cell a rise of ([\d.]+)%")[0] < 10
    return {"../FINDINGS.md": [Said("catches a rise by 10%, given a baseline of 24 seeds.", holds=shown)]}
