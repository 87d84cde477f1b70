"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables
from accuracy.results.over_ranks import over_ranks

TABLE, SIZE = "te_real_ranks/nvidia-h200-x2", 2
TENSORS = ["out", "dq", "dk", "dv"]


def numbers(tables: Tables) -> dict[str, list[Said]]:
    rows = tables.rows(TABLE)
    rows = rows[rows["tensor"].isin(TENSORS) & (rows["dtype"] == "bfloat16") & (rows["world_size"] == SIZE)]
    worst = over_ranks(rows[rows["precision"] == ""], "max").groupby("variant")["x_single_device"].max()
    more = tables.claimed(
        TABLE,
        "Float32 accumulators and wires take te_p2p at 2 ranks at most 1.1 times the time",
        r"bfloat16 ([\d.]+), float16 ([\d.]+)",
    )
    return {
        "../../README.md": [
            Said("| TransformerEngine 2.20.2, p2p | {:.2f} (2 ranks)", (worst["transformer_engine_p2p"],)),
            Said("all_gather: dk, dv | {:.2f} (2 ranks)", (worst["transformer_engine_all_gather"],)),
            Said("| TransformerEngine 2.20.2, a2a | {:.2f} (2 ranks) |", (worst["transformer_engine_a2a"],)),
        ],
        "../FINDINGS.md": [Said("for at most {:.2f} times the time.", (max(more),))],
    }
