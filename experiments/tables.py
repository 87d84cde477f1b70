"""The numbers of README.md, from the tables of several experiments: see blocks.py."""

from experiments.published import Tables, span

KEYS = ("variant", "world_size", "precision", "tensor")
FLOAT32 = "partial=accumulate,gradient_partial=accumulate"


def blocks(tables: Tables) -> dict[str, str]:
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
        "rings": span(rings, ".1f"),
        "remedy": f"{span(remedies[''])} on the worst of 64 ranks becomes {span(remedies[FLOAT32])}",
        "faults": f"names {named[0]:.0f} of {named[1]:.0f} planted faults, proves the cause of {proven[0]:.0f} of them"
        f" by reconstruction with {proven[1]:.0f} wrong causes, and accuses {none.get(int(healthy[0]), healthy[0])} of"
        f" {healthy[1]:,.0f} healthy combinations",
        "low_precision": f"{none.get(int(low[0]), low[0])} of {low[1]:,.0f} of kernels in 8 or 4 bits under"
        f" {low[2]:.0f} policies",
        "capture": f"{capture[0]:.2f}%",
    }
