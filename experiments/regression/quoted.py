"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "regression/nvidia-h200"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    shown = tables.claimed(TABLE, "With this as the baseline", r"noisiest cell a rise of ([\d.]+)%")[0] < 10
    rows, cases = tables.whole(TABLE), tables.cases(TABLE)
    cells = rows.groupby(["variant", "precision", "dtype", "world_size", "tensor"]).ngroups
    return {
        "../FINDINGS.md": [Said("catches a rise by 10%, given a baseline of 24 seeds.", holds=shown)],
        "README.md": [
            Said("{:,} measured, {} unsupported, none failed, {} cells)",
                 (cases["ok"], cases["unsupported"], cells), not cases["failed"]),
            Said("The baseline took {:.0f} s,", (tables.seconds(TABLE),)),
        ],
    }  # fmt: skip
