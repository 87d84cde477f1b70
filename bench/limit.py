"""What limits the fused float64 reference, and what does a mask save? `python -m bench.limit [TOKENS]`

On a GPU (elsewhere in Triton's interpreter): 8 heads of 128, TOKENS (32,768), causal. The kernels are timed whole and
with parts taken out of their source, so that a difference is what the part costs; rates are of useful operations (half
a square) beside cuBLAS's float64 product. Then forward and backward under a window and under packed documents: the time
beside the pairs that they keep.
"""

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch

from tests import interpreter

interpreter.prepare()

from accuracy.reference import fused, fused_kernels  # noqa: E402
from accuracy.runtime import arithmetic, device  # noqa: E402
from bench.truth import DIM, HEADS, SCALE, best, both, draw, forward, rate  # noqa: E402

DEVICE = device.choose("auto")

POWERS = ("weights = power_of_two(scores)\n", "weights = scores + 1.0\n")
SECOND = (
    "return tl.dot(swapped(weights, row_tile, key_tile), values, accumulator, out_dtype=tl.float64), top, total",
    "return accumulator, top, total",
)
SLOPE_POWERS = ("power_of_two(scores), 0.0)", "scores + 1.0, 0.0)")
SLOPES = (
    "slope = product(gradient + at_row, value + at_key, bound, dim, row_tile, key_tile, chunk)",
    "slope = scores",
)
FORWARD = {
    "whole": (2, ()),
    "without powers of two": (2, (POWERS,)),
    "without powers and the second product": (1, (POWERS, SECOND)),
}
BACKWARD = {
    "whole": (2, ()),
    "without powers of two": (2, (SLOPE_POWERS,)),
    "without powers and the second product": (1, (SLOPE_POWERS, SLOPES)),
}


def lines(length: int) -> Iterator[str]:
    product = rate(DEVICE)
    yield f"{device.name(DEVICE)}: S = {length:,}, H = {HEADS}, D = {DIM}, causal; cuBLAS {product / 1e12:.1f} TFLOP/s"
    tensors = draw(length, HEADS, DEVICE)
    work = length**2 * DIM * HEADS  # of one product, half of it visible
    kernels = fused.fused_kernels
    for title, variants, products_of_bmm in (("forward", FORWARD, 0), ("weights and slopes", BACKWARD, 3)):
        yield title
        for name, (products, changes) in variants.items():
            fused.fused_kernels = changed(*changes)
            seconds = best(lambda: forward(tensors), DEVICE) if not products_of_bmm else squares(tensors)
            share = products * work / seconds / product
            yield f"  {name:40s} {seconds * 1e3:8.1f} ms  {share:.2f} of cuBLAS for its {products} products"
        fused.fused_kernels = kernels
    seconds = squares(tensors, gradients_only=True)
    share = 3 * work / seconds / product
    yield f"{'gradients of the squares by cuBLAS':42s} {seconds * 1e3:8.1f} ms  {share:.2f} of cuBLAS for 3 products"
    yield from masks(length, tensors)


def changed(*replacements: tuple[str, str]) -> ModuleType:
    """The kernels with parts of their source replaced."""
    text = Path(fused_kernels.__file__).read_text()
    for old, new in replacements:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = Path(tempfile.mkdtemp()) / "changed_kernels.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def squares(tensors: list[torch.Tensor], gradients_only: bool = False) -> float:
    """Seconds of the backward's kernel over all its squares, or of the three products of each."""
    group, part = forward(tensors)
    side = fused._side(len(group.query), group.query.shape[1], group.intervals.widest())
    places = list(group.intervals.squares(side))
    if not gradients_only:
        return best(lambda: [fused._weights_and_slopes(part, group, *place) for place in places], DEVICE)
    kernel, held = fused._weights_and_slopes, {}

    def remembered(part, group, rows, keys):
        shape = rows.stop - rows.start, keys.stop - keys.start
        if shape not in held:
            held[shape] = kernel(part, group, rows, keys)
        return held[shape]

    fused._weights_and_slopes = remembered
    try:
        return best(lambda: [fused._add_square(part, group, *place) for place in places], DEVICE)
    finally:
        fused._weights_and_slopes = kernel


def masks(length: int, tensors: list[torch.Tensor]) -> Iterator[str]:
    """Forward and backward: what is kept of the causal pairs, and of the time."""
    whole = best(lambda: both(fused, tensors), DEVICE)
    pairs = length * (length + 1) / 2
    chosen = fused.NARROW
    yield f"causal, forward and backward: {whole:.3f} s; with squares of at least 2048, {chosen} (chosen), 512 rows:"
    for name, kept, how in _masks(length):
        shares = []
        for narrow in (2048, chosen, 512):
            with patch.object(fused, "NARROW", narrow):
                shares.append(best(lambda: fused.attention(*tensors, scale=SCALE, causal=True, **how), DEVICE) / whole)  # noqa: B023
        took = ", ".join(f"{share:.4f}" for share in shares)
        yield f"  {name:16s} {kept / pairs:.4f} of the causal pairs, {took} of the time"


def _masks(length: int) -> Iterator[tuple[str, float, dict[str, object]]]:
    for width in (length // 8, length // 32):
        yield f"window {width}", width * (width + 1) / 2 + (length - width) * (width + 1), {"window": width}
    for count in (8, 32):
        each = length // count
        yield f"{count} documents", count * each * (each + 1) / 2, {"documents": (each,) * count}


if __name__ == "__main__":
    arithmetic.make_exact()
    for line in lines(int(sys.argv[1]) if len(sys.argv) > 1 else 32768):
        print(line, flush=True)
