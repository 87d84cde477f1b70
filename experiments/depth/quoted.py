"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

LARGEST = "depth/nvidia-h200-llama-405b"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = tables.rows(LARGEST)
    rows = rows[(rows["gain"] == 1) & rows["tensor"].str.startswith("d_") & rows["x_single_device"].notna()]
    means = rows.groupby(["variant", "world_size"])["x_single_device"].mean()
    return {
        "../FINDINGS.md": [
            Said(
                "ring, zigzag and llama3_ring have {:.2f} to {:.2f} times single device's error.",
                (means.min(), means.max()),
            )
        ]
    }
