"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "fp8_training/amd-epyc"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    e4m3 = tables.claimed(TABLE, "In e4m3 no operand", r"k (\d+)%, v \d+%, p \d+%, ds (\d+)%")
    int8 = tables.claimed(TABLE, "In int8 dS has", r"int8 dq: .*?ds (\d+)%.*int8 dv: .*?p (\d+)%")
    return {
        "../FINDINGS.md": [
            Said("In int8 the cast of dS makes {:.0f}% of dq's squared error;", int8[:1]),
            Said(
                "in e4m3 k has {:.0f}% of dq's error, dS {:.0f}%. In int8 dv is lost by P ({:.0f}%).", (*e4m3, int8[1])
            ),
        ]
    }
