"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "attribution/nvidia-h200"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    share = tables.claimed(TABLE, "At least 80%", r"tensors: (\d+)%")
    return {
        "../../README.md": [Said("{:.0f}% of a ring's additional squared error is the rounding", share)],
        "../FINDINGS.md": [
            Said("{:.0f}% of a ring's additional squared error is the rounding", share),
            Said(
                "merge, lse, accumulators and transfers contribute less than 1%.",
                holds=tables.claimed(TABLE, "No place that rounds", r"most: ([\d.]+)%")[0] < 1,
            ),
        ],
    }
