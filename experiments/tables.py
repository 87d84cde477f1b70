"""The numbers of README.md, from the tables of several experiments: see blocks.py."""

from experiments.published import Tables, markdown, span

KEYS = ("variant", "world_size", "precision", "tensor")
FLOAT32 = "partial=accumulate,gradient_partial=accumulate"
MASTER, TE = "axolotl-ringmaster 0.2.7", "TransformerEngine 2.20.2"


def blocks(tables: Tables) -> dict[str, str]:
    def worst(name: str, variant: str, world_size: int, precision: str = "") -> float:
        where = {"variant": variant, "world_size": world_size, "precision": precision, "dtype": "bfloat16"}
        return float(tables.worst_rank(name, KEYS, **where, kernel="flash_attn").max())

    def real(*variants: str) -> str:
        return f"{max(worst('packages/nvidia-h200-x4', each, 4) for each in variants):.2f} (4 ranks)"

    def of_te(way: str) -> str:
        return f"{worst('te_real_ranks/nvidia-h200-x2', f'transformer_engine_{way}', 2):.2f} (2 ranks)"

    def many(variant: str, name: str = "te_growth/nvidia-h200") -> str:
        return f"{worst(name, variant, 64):.2f}"

    board = [
        (f"{TE}, p2p", of_te("p2p"), many("te_p2p")),
        (f"{TE}, all_gather: dk, dv", of_te("all_gather"), many("te_all_gather")),
        (f"{TE}, a2a", of_te("a2a"), ""),
        ("torch 2.11 context parallelism, balanced", real("torch_context_parallel_allgather_balanced"), many("zigzag")),
        (
            "ring-flash-attn 0.1.8 and yunchang 0.6.4, zigzag",
            real("ring_flash_attn_zigzag", "yunchang_zigzag"),
            many("zigzag"),
        ),
        (
            "ring-flash-attn 0.1.8, llama3: dk, dv",
            real("ring_flash_attn_llama3"),
            many("llama3", "thousand_ranks/nvidia-h200"),
        ),
        (f"{MASTER}, peer-to-peer ring", real("ringmaster_ring"), ""),
        (f"{MASTER}, zigzag", real("ringmaster_zigzag"), ""),
    ]
    rings = tables.worst_rank("world_size_growth/nvidia-h200", KEYS, variant="ring", dtype="bfloat16").loc["ring", 2:]
    where = {"variant": "ring", "dtype": "bfloat16", "kernel": "triton_split_backward", "world_size": 64}
    remedies = tables.worst_rank("remedies/nvidia-h200", ("precision", "tensor"), **where)
    named = tables.numbers("selfcheck/rates.txt", r"detection: (\d+) of (\d+) planted")
    proven = tables.numbers("selfcheck/rates.txt", r"causes: (\d+) of \d+ faults proven \(.*?\), (\d+) wrong")
    healthy = tables.numbers("selfcheck/rates.txt", r"false alarms: (\d+) of ([\d,]+) healthy")
    low = tables.numbers("selfcheck/low_precision.txt", r"healthy: (\d+) of ([\d,]+) combinations of (\d+) policies")
    capture = tables.numbers("benchmark/nvidia-h200/capture.txt", r"one step in 100: \+([\d.]+)%")
    none = {0: "none"}
    return {
        "board": markdown(("", "real ranks", "64 ranks, simulated"), board),
        "rings": span(rings, ".1f"),
        "remedy": f"{span(remedies[''])} on the worst of 64 ranks becomes {span(remedies[FLOAT32])}",
        "faults": f"names {named[0]:.0f} of {named[1]:.0f} planted faults, proves the cause of {proven[0]:.0f} of them"
        f" by reconstruction with {proven[1]:.0f} wrong causes, and accuses {none.get(int(healthy[0]), healthy[0])} of"
        f" {healthy[1]:,.0f} healthy combinations",
        "low_precision": f"{none.get(int(low[0]), low[0])} of {low[1]:,.0f} of kernels in 8 or 4 bits under"
        f" {low[2]:.0f} policies",
        "capture": f"{capture[0]:.2f}%",
    }
