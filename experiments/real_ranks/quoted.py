"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables


def quoted(tables: Tables) -> dict[str, list[Said]]:
    equal = all(all(tables.held(f"real_ranks/{name}")) for name in ("nvidia-h200-x2", "amd-epyc"))
    return {"../FINDINGS.md": [Said("Over NCCL at 1 and 2 ranks, over gloo to 8.", holds=equal)]}
