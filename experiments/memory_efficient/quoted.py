"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "memory_efficient/nvidia-h200"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    in_float32 = [claim.holds for claim in tables.claims(TABLE) if claim.statement.startswith("In float32, inputs")]
    bound = Said(
        "bound of 1e-5 in float32 holds on its inputs at every size, and on N(0, 4^2) at none.",
        holds=len(in_float32) == 4 and all(in_float32),
    )
    return {"../FINDINGS.md": [bound]}
