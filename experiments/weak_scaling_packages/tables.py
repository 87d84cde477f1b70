"""The numbers of README.md, from the published tables of this experiment and of weak_scaling."""

from experiments.claim import over_ranks
from experiments.published import TENSORS, Tables, cells, chosen, markdown

SIZES = [2, 4, 8, 16, 32]
TOKENS = 2048  # of a rank
TWINS = {
    "ring_flash_attn_ring": "ring", "ring_flash_attn_zigzag": "zigzag", "ring_flash_attn_llama3": "llama3",
    "transformer_engine_all_gather": "te_all_gather", "transformer_engine_p2p": "te_p2p",
    "torch_context_parallel_alltoall_balanced": "zigzag",
}  # fmt: skip
AT = ["seed", "world_size", "tensor", "rank"]


def blocks(tables: Tables) -> dict[str, str]:
    """Worst ranks, and how far each error is from our schedule's."""
    (rows,) = (chosen(run, status="ok", tensor=TENSORS) for run in tables.of("weak_scaling_packages"))
    (simulated,) = tables.of("weak_scaling")
    means = over_ranks(rows, "max", ["variant", "tensor", "world_size"])
    text = means.set_index(["variant", "tensor", "world_size"])["x_single_device"].unstack("world_size")
    lines = [
        (variant, tensor, *cells(text.loc[variant, tensor], SIZES))
        for variant in sorted({*rows["variant"]})
        for tensor in TENSORS
    ]
    simulated = chosen(simulated, world="simulated")
    ours = simulated[simulated["seqlen"] == TOKENS * simulated["world_size"]].set_index(["variant", *AT])["error_rel"]
    theirs = rows.set_index(["variant", *AT])["error_rel"]
    apart = {
        package: (theirs[package] / ours[twin] - 1).abs().dropna()
        for package, twin in TWINS.items()
        if package in theirs
    }
    return {
        "real": f"to {apart['transformer_engine_p2p'].max():.2%}",
        "packages": markdown(("", "tensor", "W = 2", *SIZES[1:]), lines),
        "apart": markdown(
            ("package", "our schedule", "errors compared", "that differ", "furthest apart"),
            [(name, TWINS[name], f"{len(x):,}", f"{(x > 0).sum():,}", f"{x.max():.2%}") for name, x in apart.items()],
        ),
    }
