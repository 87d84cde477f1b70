"""What does a backward with dq apart from dk, dv gain over XLA's, by how many heads there are? (jax-triton #177)

python -m bench.jax_split [FOLDER]

#177 splits the backward so that it is parallel over the sequence too, and says about 3 times the speed of XLA's
backward (causal); its reviewer expects the gain where batch times heads is small. Beside it: our own split and fused
Triton backwards, and cuDNN's through JAX. float16, causal. Milliseconds of a call, medians; JAX's backward is forward
and backward less forward, as its functions keep what they need. FOLDER gets jax_split.csv.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from accuracy.kernel.block import in_jax
from accuracy.kernel.triton.available import PARTS
from accuracy.reference.float64 import attention
from accuracy.runtime import arithmetic

LENGTH, DIM = 2048, 64
SHAPES = ((1, 1), (1, 4), (1, 16), (4, 16), (8, 32))  # batch, heads
SCALE = DIM**-0.5
ROUNDS = 15


def milliseconds(call: Callable[[], Any]) -> tuple[float, Any]:
    result = call()
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = call()
        in_jax.load().block_until_ready(result)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times), result


def of_jax(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> Iterator[tuple[str, float, float, tuple[Tensor, ...]]]:
    import jax
    from jax.experimental.pallas.ops.gpu import attention as pallas

    mha = partial(pallas.mha, segment_ids=None, sm_scale=SCALE, causal=True)
    nn = partial(jax.nn.dot_product_attention, is_causal=True, scale=SCALE)
    functions = {
        "jax_pallas_split": partial(mha, backward_pass_impl="triton"),
        "jax_nn_xla": partial(nn, implementation="xla"),
        "jax_nn_cudnn": partial(nn, implementation="cudnn"),
    }
    *inputs, gradient = in_jax.to_jax(q, k, v, dout)
    for name, function in functions.items():
        both = jax.jit(lambda q, k, v, dout, function=function: jax.vjp(function, q, k, v)[1](dout))
        forward, _ = milliseconds(partial(jax.jit(function), *inputs))
        whole, found = milliseconds(partial(both, *inputs, gradient))
        yield name, forward, whole - forward, in_jax.to_torch(*found)


def of_ours(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> Iterator[tuple[str, float, float, tuple[Tensor, ...]]]:
    how = {"scale": SCALE, "causal": True}
    for name in ("triton_split_backward", "triton_fused_backward"):
        kernel = PARTS[name].KERNEL().build("cuda")
        forward, (out, lse) = milliseconds(partial(kernel.forward, q, k, v, **how, out_dtype=q.dtype))
        backward, found = milliseconds(partial(kernel.backward, dout, q, k, v, out, lse, **how, gradient_dtype=q.dtype))
        yield name, forward, backward, found


def rows() -> Iterator[dict[str, Any]]:
    for batch, heads in SHAPES:
        generator = torch.Generator("cuda").manual_seed(0)
        shape = batch, LENGTH, heads, DIM
        tensors = [torch.randn(shape, generator=generator, device="cuda", dtype=torch.float16) for _ in range(4)]
        reference = attention(*(x[:1, :, :1] for x in tensors), scale=SCALE, causal=True)
        for ways in (of_jax, of_ours):
            for name, forward, backward, found in ways(*tensors):
                pairs = zip(("dq", "dk", "dv"), found, (reference.dq, reference.dk, reference.dv), strict=True)
                errors = {
                    tensor: float((x[:1, :, :1].double() - right).norm() / right.norm()) for tensor, x, right in pairs
                }
                yield {
                    "batch": batch, "heads": heads, "kernel": name, "forward_ms": forward, "backward_ms": backward,
                    **errors,
                }  # fmt: skip


def main() -> None:
    arithmetic.make_exact()
    table = pd.DataFrame(rows())
    print(table.to_string(index=False, float_format="{:.4g}".format))
    for folder in sys.argv[1:]:
        table.to_csv(Path(folder) / "jax_split.csv", index=False)


if __name__ == "__main__":
    main()
