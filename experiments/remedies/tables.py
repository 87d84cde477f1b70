"""The numbers of README.md and FINDINGS.md, from the published tables."""

import pandas as pd

from experiments.claim import half_interval
from experiments.published import TENSORS, Tables, cells, chosen, joined, markdown, span

TABLE, REAL = "remedies/nvidia-h200", "remedies/nvidia-h200-x2"
OUT, GRADIENTS = "partial=accumulate", "gradient_partial=accumulate"
SUMS = "dkv_accumulator=accumulate,gradient_wire=accumulate"
PARTIALS, ALL = f"{OUT},{GRADIENTS}", f"{OUT},{GRADIENTS},{SUMS}"
PUBLISHED, CARRY = "triton_split_backward", "triton_carry"
RINGS = ("ring", "llama3_ring", "zigzag")
KEYS = ["variant", "kernel", "precision"]
ERRORS = {
    "ring as published": ("ring", PUBLISHED, ""),
    "ring, float32 out partials": ("ring", PUBLISHED, OUT),
    "ring, float32 partials (out and gradients)": ("ring", PUBLISHED, PARTIALS),
    "ring, carried accumulators, float32 gradient partials": ("ring", CARRY, GRADIENTS),
    "llama3 as published; with float32 partials": ("llama3", PUBLISHED, ""),
    "llama3, float32 sums and wire": ("llama3", PUBLISHED, SUMS),
    "llama3, float32 throughout": ("llama3", PUBLISHED, ALL),
    "llama3_ring as published": ("llama3_ring", PUBLISHED, ""),
    "llama3_ring, float32 partials": ("llama3_ring", PUBLISHED, PARTIALS),
}
MEMORY = {
    "single device, 1 rank": ("single_device", PUBLISHED, "", 1),
    "ring as published": ("ring", PUBLISHED, "", 2),
    "ring, float32 partials": ("ring", PUBLISHED, PARTIALS, 2),
    "ring, carried accumulators": ("ring", CARRY, GRADIENTS, 2),
    "zigzag as published": ("zigzag", PUBLISHED, "", 2),
    "zigzag, float32 partials": ("zigzag", PUBLISHED, PARTIALS, 2),
    "llama3 as published": ("llama3", PUBLISHED, "", 2),
    "llama3, float32 throughout": ("llama3", PUBLISHED, ALL, 2),
    "llama3_ring as published": ("llama3_ring", PUBLISHED, "", 2),
}


def blocks(tables: Tables) -> dict[str, str]:
    rows, real = tables.rows(TABLE), chosen(tables.rows(REAL), status="ok")
    every = chosen(rows, tensor=TENSORS, rank=-1, world_size=64)
    means = every.groupby(["dtype", *KEYS, "tensor"])["x_single_device"].mean()["bfloat16"]
    where = {"variant": "ring", "kernel": PUBLISHED, "dtype": "bfloat16", "precision": ["", PARTIALS]}
    ranks = tables.worst_ranks(TABLE, ("precision", "world_size", "tensor"), **where)
    worst, half = ranks["x_single_device"], ranks["half"].groupby("precision").max()
    of_rings = {"as published": worst[""], "float32 partials": worst[PARTIALS]}
    peaks = real.groupby([*KEYS, "world_size", "dtype"])["peak_bytes"].max() / 2**20
    peak = peaks.xs("bfloat16", level="dtype")
    pooled = chosen(real, tensor=TENSORS, rank=-1).groupby(["dtype", *KEYS, "world_size", "tensor"])["x_single_device"]
    largest = pooled.mean().groupby(["dtype", *KEYS, "world_size"]).max()["bfloat16"]
    messages, sent = _sent(tables)

    def grown(policy: str, rings: tuple[str, ...]) -> dict[str, float]:
        return {of: (peaks[of, PUBLISHED, policy, 2] / peaks[of, PUBLISHED, "", 2]).max() - 1 for of in rings}

    more, compensated = grown(PARTIALS, RINGS), grown("merge=compensated", ("ring", "zigzag"))
    return {
        "cases": "{} cases measured over simulated ranks, {} unsupported".format(
            *(chosen(rows, status=each)["case_id"].nunique() for each in ("ok", "unsupported"))
        ),
        "errors": markdown(
            ("", *TENSORS), ((name, *cells(means[key], TENSORS)) for name, key in ERRORS.items() if key in means)
        ),
        "halves": f"at most {half['']:.2f} as published and {half[PARTIALS]:.3f} with float32 partials",
        "worst": markdown(
            ("ring: out, dq, dk, dv", "W = 2", "8", "64"),
            (
                (f"on the worst rank, {name}", *(joined(of[size][TENSORS]) for size in (2, 8, 64)))
                for name, of in of_rings.items()
            ),
        ),
        "memory": markdown(
            ("2 ranks", "peak MiB a rank", "worst tensor, times single device"),
            ((name, f"{peak[key]:.0f}", f"{largest[key]:.2f}") for name, key in MEMORY.items()),
        ),
        "real_halves": f"at most {half_interval(pooled)['bfloat16'].max():.3f}",
        "llama3": f"{peak['llama3', PUBLISHED, '', 2]:.0f} MiB a rank where a ring has"
        f" {peak['ring', PUBLISHED, '', 2]:.0f}",
        "sent": markdown(("", "2 ranks", "4", "8", "64"), sent),
        "messages": f"{messages['llama3', 1][2]:.0f} where a ring of 2 ranks has {messages['ring', 0][2]:.0f}",
        "few": f"in {messages['llama3', 1][2]:.0f} messages",
        "llama3_error": f"{means['llama3', PUBLISHED, ''].max():.1f} times single device's error at 64 ranks",
        "larger": ", ".join(f"{name} by {share:.0%}" for name, share in more.items()),
        "compensated": ", ".join(f"{name} {share:.0%}" for name, share in compensated.items()),
        "partials": f"{span(means['ring', PUBLISHED, PARTIALS][TENSORS])} times single device's",
        "cost": f"a ring's memory grows by {more['ring']:.0%}",
    }


def _sent(tables: Tables) -> tuple["pd.Series[float]", list[list[str]]]:
    """Messages of a rank, forward and backward together, and the lines of a table."""
    rows = tables.csv("remedies/bytes.csv").fillna(0)
    both = rows.groupby(["variant", "heads_stride", "world_size"])[["messages", "times_own_kv"]].sum()
    sent, messages = both["times_own_kv"], both["messages"]
    alike = [name for name, stride in (("ring", 0), ("zigzag", 0), ("llama3_ring", 1), ("llama3_ring", 8))
             if sent[name, stride].equals(sent["ring", 0])]  # fmt: skip
    lines = {
        ", ".join(dict.fromkeys(alike)): sent["ring", 0],
        "llama3": sent["llama3", 1],
        "messages: ring": messages["ring", 0],
        "messages: llama3, head stride 1": messages["llama3", 1],
        "messages: llama3, head stride 8": messages["llama3", 8],
    }
    text = [[name, *cells(numbers, (2, 4, 8, 64), ".0f")] for name, numbers in lines.items()]
    return messages, text
