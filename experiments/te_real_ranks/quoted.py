"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables, lines
from accuracy.results.over_ranks import KEYS, over_ranks

TABLE, TENSORS = "te_real_ranks/nvidia-h200-x2", ["out", "dq", "dk", "dv"]


def quoted(tables: Tables) -> dict[str, list[Said]]:
    longer = tables.claimed(
        TABLE,
        "Float32 accumulators and wires take te_p2p at 2 ranks at most 1.1 times the time",
        r"bfloat16 ([\d.]+), float16 ([\d.]+)",
    )
    larger = tables.claimed(
        TABLE, "Float32 accumulators and wires take te_p2p at 2 ranks at most 1.5", r"bfloat16 ([\d.]+)"
    )
    equal, rows, away = tables.claimed(
        TABLE, "p2p, all_gather and a2a", r"^(\d+) of (\d+) rows equal; farthest: ([\d.]+)"
    )
    return {
        "../FINDINGS.md": [Said("for at most {:.2f} times the time.", (max(longer),))],
        "README.md": [
            *_table(tables),
            Said("{:.0f} of {:.0f} rows of TransformerEngine's code have their twin's error", (equal, rows)),
            Said("The other {:.0f} are of p2p and differ by at most {:.0e} of the error:", (rows - equal, 1 - away)),
            Said(
                "on 2 ranks {:.2f} (bfloat16) and {:.2f} (float16) times the time and {:.2f} times the memory:",
                (*longer, *larger),
            ),
        ],
    }


def _table(tables: Tables) -> list[Said]:
    rows = tables.rows(TABLE)
    rows = rows[(rows["dtype"] == "bfloat16") & (rows["world_size"] == 2) & (rows["precision"] == "")]
    means = (
        over_ranks(rows, "max", (*KEYS, "rank")).set_index(["variant", "rank", "tensor"])["x_single_device"].unstack()
    )
    p2p, gather, a2a = (means.loc[f"transformer_engine_{way}"][TENSORS] for way in ("p2p", "all_gather", "a2a"))
    both = [
        f"{low:.2f}" if tensor in ("out", "dq") else f"{low:.2f}, {high:.2f}" for tensor, (low, high) in gather.items()
    ]
    table = {"p2p, rank 0": p2p.loc[0], "p2p, rank 1": p2p.loc[1], "all_gather, ranks 0 and 1": both, "a2a": a2a.max()}
    return lines(table)
