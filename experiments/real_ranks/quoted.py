"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

GLOO, NCCL = "real_ranks/amd-epyc", "real_ranks/nvidia-h200-x2"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    equal = all(all(tables.held(name)) for name in (GLOO, NCCL))
    gloo, nccl = (tables.claimed(name, "Real ranks", r"^([\d,]+) of ([\d,]+) rows equal") for name in (GLOO, NCCL))
    of_gloo, of_nccl = tables.cases(GLOO), tables.cases(NCCL)
    return {
        "../FINDINGS.md": [Said("Over NCCL at 1 and 2 ranks, over gloo to 8.", holds=equal)],
        "README.md": [
            Said(
                "{} cases, none failed, a minute;",
                (of_gloo["ok"],),
                not of_gloo["failed"] and tables.seconds(GLOO) < 90,
            ),
            Said("{:,.0f} of {:,.0f} rows are equal in every digit**, all eight", gloo),
            Said(
                "{} cases, none failed, {:.0f} seconds;",
                (of_nccl["ok"], tables.seconds(NCCL)),
                not of_nccl["failed"],
            ),
            Said("{:,.0f} of {:,.0f} rows are equal in every digit**, too", nccl),
        ],
    }
