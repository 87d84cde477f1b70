"""Triton: products of FP8 tiles, their sum's precision as a knob, and tiles of transposed copies.

Hopper's tensor core keeps about 14 bits of a sum of FP8 products (arXiv 2412.19437). Triton's `max_num_imprecise_acc`
moves the sum to float32 registers after so many terms of one product; a sum over many tiles is moved by a second
accumulator, `accumulate`. Elsewhere sums are float32, and both only add at other places.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from accuracy.core.quantisation import FLOAT32_BITS, STEP, Policy


@dataclass(frozen=True)
class Flush:
    """imprecise: terms of a product that the tensor core sums itself (None: all); every: tiles after which the sum is
    moved: 0: never, 1: each."""

    imprecise: int | None
    every: int


def flush_of(policy: Policy, terms: int, *, over_tiles: bool = True) -> Flush:
    """How the policy's sums are kept where a tile adds `terms` terms. A policy of float32 sums has the nearest to it:
    float32 behind each of the tensor core's instructions."""
    interval = STEP if policy.accumulator_bits == FLOAT32_BITS else policy.flush_interval
    imprecise = interval if 0 < interval < terms else None
    if not over_tiles or policy.granularity != "tensor":
        return Flush(imprecise, 1)
    return Flush(imprecise, interval // terms)


@triton.jit
def accumulate(total, partial, left, right, factor, index, imprecise: tl.constexpr, every: tl.constexpr):
    """total and partial with left (M, K) right (K, N) of the tile `index` on top. factor: of this tile, where every
    tile is moved by itself; others, and None, are multiplied once, at the end."""
    if every == 0:
        total = tl.dot(left, right, total, max_num_imprecise_acc=imprecise)
    elif every == 1:
        product = tl.dot(left, right, max_num_imprecise_acc=imprecise)
        total += product if factor is None else product * factor
    else:
        begins = tl.cast(index % every == 0, tl.float32)  # a number, no branch: behind one, ptxas serialises each wgmma
        total += partial * begins
        partial = tl.dot(left, right, partial * (1.0 - begins), max_num_imprecise_acc=imprecise)
    return total, partial


@triton.jit
def load_columns(pointer, stride, present, tile: tl.constexpr, dim: tl.constexpr, padded: tl.constexpr):
    """(tile, padded) of a transposed copy: columns from `pointer` on of `dim` rows, zero from column `present` on."""
    row = tl.arange(0, padded)[:, None]
    column = tl.arange(0, tile)[None, :]
    return tl.trans(tl.load(pointer + row * stride + column, mask=(row < dim) & (column < present), other=0.0))


@triton.jit
def in_order(weights):
    """Weights (rows, keys) with their keys in the order of `Operand.interleaved`."""
    parts = tl.reshape(weights, (weights.shape[0], weights.shape[1] // 16, 2, 4, 2))
    return tl.reshape(tl.permute(parts, (0, 1, 3, 2, 4)), weights.shape)
