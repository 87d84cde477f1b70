"""The numbers of README.md's rings, from the published table."""

from accuracy.results.table import ALL_RANKS
from experiments.published import TENSORS, Tables, cells, chosen, markdown, span

RINGS = "kernels/nvidia-h200-flash-attn-4-rings"
SIZES = [2, 4, 8, 16]


def blocks(tables: Tables) -> dict[str, str]:
    """flash-attn 4's error over flash-attn 2's in the same schedule, over all ranks together, mean of five seeds."""
    rows = chosen(tables.rows(RINGS), rank=ALL_RANKS, tensor=TENSORS)
    keys = ["heads_kv", "variant", "tensor", "world_size"]
    errors = rows.pivot_table(index=[*keys, "seed"], columns="kernel", values="error_rel")
    ratio = (errors["flash_attn_4"] / errors["flash_attn"]).groupby(keys).mean()
    lines = [(shared, name, tensor, *cells(ratio[shared, name, tensor], SIZES)) for shared in (8, 2)
             for name in ("ring", "zigzag", "llama3") for tensor in TENSORS]  # fmt: skip
    alike = [ratio[8], ratio.loc[2, :, ["out", "dq"]]]
    rings = ratio.loc[2, ["ring", "zigzag"], ["dk", "dv"]]
    return {
        "rings": markdown(("key heads of 8", "schedule", "tensor", *(f"W = {size}" for size in SIZES)), lines),
        "alike": span([value for each in alike for value in each], ".3f"),
        "shared": span(rings),
        "gathered": span(ratio.loc[2, ["llama3"], ["dk", "dv"]]),
    }
