"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "fp8_remedies/amd-epyc"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rotation = tables.claimed(TABLE, "On outliers the rotation", r"fp8_hadamard ([\d.]+)")
    blocks = tables.claimed(TABLE, "On outliers the rotation", r"fp8_block ([\d.]+)")
    dv = tables.claimed(TABLE, "Without a prescale dv", r"gaussian: dv ([\d.]+)")
    held = tables.held(TABLE)
    return {
        "../FINDINGS.md": [
            Said(
                "error to {:.2f} times that of scales of tensors, block scales to {:.2f} times.", (*rotation, *blocks)
            ),
            Said(
                "costs dv up to {:.1f} times the error and out nothing. Four of five predictions",
                dv,
                holds=(len(held), sum(held)) == (5, 1),
            ),
        ]
    }
