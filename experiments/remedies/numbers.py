"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "remedies/nvidia-h200"


def numbers(tables: Tables) -> dict[str, list[Said]]:
    rows = tables.rows(TABLE)
    ring = rows[(rows["variant"] == "ring") & (rows["rank"] == -1) & (rows["world_size"] == 64)]
    ring = ring[(ring["dtype"] == "bfloat16") & ring["tensor"].isin(["out", "dq", "dk", "dv"])]
    means = ring.groupby(["precision", "tensor"])["x_single_device"].mean()
    best = means["partial=accumulate,gradient_partial=accumulate"]
    two = tables.rows("remedies/nvidia-h200-x2")
    two = two[(two["variant"] == "ring") & (two["world_size"] == 2)]
    costs = two.groupby(["precision", "dtype"])[["seconds", "peak_bytes"]].min()
    more = costs.loc["partial=accumulate,gradient_partial=accumulate"] / costs.loc[""] - 1
    return {
        "../../README.md": [
            Said(
                "With float32 block results {:.2f} to {:.2f} becomes {:.2f}.",
                (means[""].min(), means[""].max(), best.max()),
            ),
        ],
        "../FINDINGS.md": [
            Said(
                "With float32 block results the error is within 2% of single device's;",
                holds=(best["dq":].max() < 1.02) and all(tables.held(TABLE)[:3]),
            ),
            Said("a ring then takes {:.0%} to {:.0%} longer", (more["seconds"].min(), more["seconds"].max())),
            Said("and a tenth more memory.", holds=bool(more["peak_bytes"].between(0.095, 0.115).all())),
        ],
    }
