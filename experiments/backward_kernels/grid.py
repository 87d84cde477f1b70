"""How long does each form of the backward take on the grid of jax-triton #177? Milliseconds, causal, float16.

    python -m experiments.backward_kernels.grid FOLDER [--batches 1 16 128] [--lengths 2048 4096 8192]

12 heads of 64. `fused_by_head` is the pull request's old form: one program for each batch and head, which goes over all
keys, so that only batch x heads programs share the GPU. `varlen`: sequences of many lengths, one call after another.
Written is FOLDER/grid.csv; `off`: dq's relative distance from the split form's.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import torch
import triton
import triton.language as tl
from torch import Tensor

from accuracy.core import plugins
from accuracy.kernel.triton.backward import gradients, row_statistics
from accuracy.kernel.triton.key_gradient import _over_rows, _row_ranges
from accuracy.kernel.triton.tile import LOG2_E, choose, load_rows, store_rows, strides
from accuracy.runtime import arithmetic, device

HEADS, DIM, REPEATS = 12, 64, 6
SCALE = DIM**-0.5
VARLEN = tuple(range(512, 8193, 512))
Backward = Callable[..., tuple[Tensor, ...]]
Row = dict[str, object]


@triton.jit(do_not_specialize=["rows", "heads"])
def _head_gradient(
    dk, dv, dq, dout, q, k, v, lse_bits, delta, statistic_head, scale, scale_bits, rows, heads,
    batch_stride, row_stride, head_stride,
    dim: tl.constexpr, padded: tl.constexpr, row_tile: tl.constexpr, key_tile: tl.constexpr,
):  # fmt: skip
    """dq / scale, dk and dv of one head of one sequence, causal, in one program. All tensors have the same strides."""
    plane = tl.program_id(0).to(tl.int64)
    start = plane // heads * batch_stride + plane % heads * head_stride
    q += start
    dout += start
    dq += start
    lse_bits += plane * statistic_head
    delta += plane * statistic_head
    for first_key in range(0, rows, key_tile):
        here = start + tl.cast(first_key, tl.int64) * row_stride
        key_column, present = first_key + tl.arange(0, key_tile), rows - first_key
        key = load_rows(k + here, row_stride, present, key_tile, dim, padded, False)
        value = load_rows(v + here, row_stride, present, key_tile, dim, padded, False)
        begin, whole, partial, masked = _row_ranges(first_key, rows, rows, row_tile, key_tile, True)
        whole_tiles = tl.maximum(partial - whole, 0) // row_tile
        dk_total = tl.zeros((key_tile, padded), tl.float32)
        dv_total = tl.zeros((key_tile, padded), tl.float32)
        dk_total, dv_total = _over_rows(
            dk_total, dv_total, key, value, q, dout, dq, lse_bits, delta, statistic_head,
            row_stride, head_stride, row_stride, head_stride, row_stride, head_stride, key_column, whole, whole,
            partial, whole_tiles, 1, rows, rows, scale_bits, dim, padded, row_tile, True, True, False,
        )  # fmt: skip
        dk_total, dv_total = _over_rows(
            dk_total, dv_total, key, value, q, dout, dq, lse_bits, delta, statistic_head,
            row_stride, head_stride, row_stride, head_stride, row_stride, head_stride, key_column, begin, whole,
            partial, masked, 1, rows, rows, scale_bits, dim, padded, row_tile, True, True, True,
        )  # fmt: skip
        store_rows(dk + here, row_stride, present, dk_total * scale, key_tile, dim, padded)
        store_rows(dv + here, row_stride, present, dv_total, key_tile, dim, padded)


def fused_by_head(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
    lse_bits, delta = row_statistics(dout, out, lse)
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    total = torch.zeros_like(q, dtype=torch.float32)
    tiles, padded = choose("FUSED_GRADIENT", q)
    batch, rows, heads, dim = q.shape
    _head_gradient[(batch * heads,)](
        dk, dv, total, dout, q, k, v, lse_bits, delta, delta.stride(1), SCALE, SCALE * LOG2_E.value, rows, heads,
        *strides(q), dim, padded, tiles.rows, tiles.keys, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    torch.mul(total, SCALE, out=dq)
    return dq, dk, dv


def forms(on_gpu: bool) -> dict[str, Backward]:
    ours = {"scale": SCALE, "causal": True, "gradient_dtype": torch.float16}
    found: dict[str, Backward] = {
        "split": partial(gradients, fused=False, **ours), "fused_by_tile": partial(gradients, fused=True, **ours),
        "fused_by_head": fused_by_head,
    }  # fmt: skip
    for name, settled in (("flash_attn", False), ("flash_attn_deterministic", True)) if on_gpu else ():
        module = plugins.load("accuracy.kernel.flash_attn")
        found[name] = partial(
            plugins.build_options(module, (("deterministic", settled),)).build("cuda").backward, **ours
        )
    return found


def given(batch: int, length: int, where: str) -> tuple[Tensor, ...]:
    """dout, q, k, v, out, lse."""
    generator = torch.Generator(where).manual_seed(length)
    shape = (batch, length, HEADS, DIM)
    dout, q, k, v = (
        torch.randn(shape, generator=generator, device=where, dtype=torch.float16) for _ in range(4)
    )  # fmt: skip
    kernel = plugins.build_options(plugins.load("accuracy.kernel.triton.available:triton_split_backward"), ()).build(
        where
    )
    out, lse = kernel.forward(q, k, v, scale=SCALE, causal=True, out_dtype=q.dtype)
    return dout, q, k, v, out, lse


def milliseconds(call: Callable[[], object]) -> float:
    """The fastest of several calls, each between two events: others may share the GPU."""
    call()
    return min(device.between_events(call, REPEATS))


def measured(
    about: dict[str, object], sequences: list[tuple[Tensor, ...]], on_gpu: bool
) -> Iterator[dict[str, object]]:
    base = None
    for name, form in forms(on_gpu).items():
        try:
            dq = form(*sequences[0])[0].float()
            base = dq if base is None else base
            off = float((dq - base).norm() / base.norm())
            took = milliseconds(lambda form=form: [form(*each) for each in sequences]) if on_gpu else 0.0
        except Exception as error:
            yield {**about, "form": name, "reason": f"{type(error).__name__}: {error}"[:200]}
            continue
        yield {**about, "form": name, "ms": took, "off": off}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("folder", type=Path)
    words.add_argument("--batches", type=int, nargs="+", default=[1, 16, 128])
    words.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192])
    words.add_argument("--varlen", type=int, nargs="+", default=list(VARLEN))
    words.add_argument("--device", default="cuda")
    told = words.parse_args()
    arithmetic.make_exact()
    on_gpu = told.device == "cuda"
    about = {"device": device.name("cuda") if on_gpu else "cpu", "heads": HEADS}
    rows: list[Row] = []
    for batch in told.batches:
        for length in told.lengths:
            shape = {**about, "batch": batch, "length": str(length)}
            rows += measured(shape, [given(batch, length, told.device)], on_gpu)
    sequences = [given(1, length, told.device) for length in told.varlen]
    rows += measured({**about, "batch": len(sequences), "length": "varlen"}, sequences, on_gpu)
    table = pd.DataFrame(rows)
    told.folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(told.folder / "grid.csv", index=False, float_format="%.4g")
    print(table.to_string())


if __name__ == "__main__":
    main()
