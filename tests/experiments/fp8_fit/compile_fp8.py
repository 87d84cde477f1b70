"""Compile the FP8 kernels for Hopper without a GPU; print the name of each whose products are on its tensor cores."""

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from accuracy.core import plugins
from accuracy.core.paths import EXPERIMENTS

FORWARD_KERNEL, *SLOPE_KERNELS = (
    getattr(plugins.load(str(EXPERIMENTS / f"fp8_fit/kernel/_fp8_{name}.py")), kernel)
    for name, kernel in (
        ("forward", "_forward"), ("gradients", "query_gradient_kernel"), ("gradients", "key_gradient_kernel")
    )
)  # fmt: skip

E4M3 = {"q", "k", "v", "dout", "k_columns", "q_columns", "dout_columns"}
FLOAT32 = {"lse", "q_scale", "k_scale", "v_scale", "do_scale", "lse_bits", "delta", "largest"}
NUMBERS = {"scale", "shift", "scale_bits"}
SHAPE = {"dim": 128, "padded": 128, "key_tile": 64, "causal": True, "score_terms": 64, "terms": None, "every": 2}
SLOPE = {"row_tile": 64, "slope_type": tl.float8e4nv, "limit": 448.0, "own": False}
FORWARD = {"row_tile": 64, "weight_type": tl.float8e4nv, "own": False}
TILES = {"q": (64, 128), "k": (64, 128), "v": (128, 64)}  # tensor descriptors of the forward
KERNELS = (
    (FORWARD_KERNEL, FORWARD),
    (SLOPE_KERNELS[0], SLOPE | {"find": False}),
    (SLOPE_KERNELS[1], SLOPE | {"weight_type": tl.float8e4nv}),
)


def kind(name: str) -> str:
    if name in E4M3:
        return "*fp8e4nv"
    return "*fp32" if name in FLOAT32 else "*bf16" if name in {"out", "dq", "dk", "dv"} else (
        "fp32" if name in NUMBERS else "i32")  # fmt: skip


def compiled(kernel: Any, constants: dict[str, Any]) -> str:
    """The PTX."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else kind(name) for name in names}
    if kernel is FORWARD_KERNEL:
        signature |= {name: f"tensordesc<fp8e4nv{list(tile)}>" for name, tile in TILES.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
    text: str = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8}).asm["ptx"]
    return text


if __name__ == "__main__":
    for kernel, own in KERNELS:
        if "wgmma.mma_async.sync.aligned.m64" in (text := compiled(kernel, SHAPE | own)) and ".e4m3.e4m3" in text:
            print(kernel.__name__)
