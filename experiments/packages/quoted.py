"""Which table says each number: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables

TABLE, ZIGZAG, LLAMA3 = "packages/nvidia-h200-x4", "double_ring/nvidia-h200", "thousand_ranks/nvidia-h200"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    real = tables.worst_rank(TABLE, 4)
    zigzag, llama3 = tables.worst_rank(ZIGZAG, 64)["zigzag"], tables.worst_rank(LLAMA3, 64)["llama3"]
    balanced = real["torch_context_parallel_allgather_balanced"]
    published = [real["ring_flash_attn_zigzag"], real["yunchang_zigzag"]]
    return {
        "../../README.md": [
            Said("context parallelism, balanced | {:.2f} (4 ranks) | {:.2f} |", (balanced, zigzag)),
            Said(
                "and yunchang 0.6.4, zigzag | {:.2f} (4 ranks) | {:.2f} |",
                (max(published), zigzag),
                holds=round(min(published), 2) == round(max(published), 2),
            ),
            Said("llama3: dk, dv | {:.2f} (4 ranks) | {:.2f} |", (real["ring_flash_attn_llama3"], llama3)),
            Said("| axolotl-ringmaster 0.2.7, zigzag | {:.2f} (4 ranks) |", (real["ringmaster_zigzag"],)),
            Said("({:.1f} times the error in float16)", (_dq_over_ours(tables.rows(TABLE)),)),
        ]
    }


def _dq_over_ours(rows: pd.DataFrame) -> float:
    """The largest error of the packages' dq in float16 over that of our ring."""
    dq = rows[(rows["dtype"] == "float16") & (rows["tensor"] == "dq") & (rows["rank"] == -1) & (rows["world_size"] > 1)]
    errors = dq.groupby(["kernel", "world_size", "variant"])["error_rel"].mean().unstack("variant")
    return float((errors["ring_flash_attn_ring"] / errors["ring"]).max())
