"""torch's memory-efficient kernel, emulated: float32 products are three in TF32, added by a tensor core that cuts off.

Blocks of 64 queries and keys (head_dim 64). In 16 bits an instruction adds up 8 terms (gemm_kernel_utils.h,
`InstructionShape`); P is stored in the inputs' dtype before dS is made of it, and dS again (kernel_backward.h).

torch 2.11, aten/src/ATen/native/transformers/cuda/mem_eff_attention: gemm_kernel_utils.h (OpMultiplyAddFastF32),
gemm/custom_mma_multistage.h (a sum of its own for 32 terms), kernel_forward.h (softmax and lse in base 2). CUTLASS
include/cutlass/gemm/warp/mma_tensor_op_fast_f32.h: small x big, big x small, big x big; big is cut off to 11 bits.
"""

import math

import torch
from torch import Tensor

from accuracy.inputs.drawing import Inputs

BLOCK, STEP, STAGE = 64, 8, 32  # terms of one instruction (16 x 8 x 8); of one loop over the shared memory
EXTRA_BITS = 2  # that Hopper's tensor core keeps behind the 24 of float32 when it aligns what it adds
LOG2E = torch.tensor(1.4426950408889634, dtype=torch.float32)


def split_product(q: Tensor, k: Tensor, kept: Tensor | None = None) -> Tensor:
    """kept + q (M, D) times k (N, D) transposed, float32, as the kernel has it."""
    parts = [_split(x.contiguous()) for x in (q, k)]
    total = torch.zeros(len(q), len(k), device=q.device) if kept is None else kept
    mine = torch.zeros_like(total).double()
    for first in range(0, q.shape[1], STEP):
        here = slice(first, first + STEP)
        (q_big, q_small), (k_big, k_small) = (tuple(x[:, here].double() for x in each) for each in parts)
        for left, right in ((q_small, k_big), (q_big, k_small), (q_big, k_big)):
            mine = _instruction(mine, left, right)
        if first % STAGE == 0:
            total, mine = total + mine.float(), torch.zeros_like(mine)
    return total + mine.float()


def lse(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Causal, of one head: q (S, D), k (S, D)."""
    scores = split_product(q, k) * (torch.tensor(scale) * LOG2E).to(q.device)
    hidden = torch.ones(scores.shape, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(hidden, -math.inf)
    top = scores.amax(1, keepdim=True)
    return top[:, 0] / LOG2E.to(q.device) + torch.exp2(scores - top).sum(1).log()


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Big: x without its last 13 bits; small: the rest, rounded to 11 bits."""
    big = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return big, (((x - big).view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def _instruction(kept: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """kept + left right^T, float64: all that is added is aligned to the largest exponent and cut off, the sum too."""
    terms = torch.cat([kept[:, :, None], left[:, None] * right[None]], 2)
    exponents = torch.cat([_exponent(kept)[:, :, None], _exponent(left)[:, None] + _exponent(right)[None]], 2)
    unit = torch.exp2(exponents.amax(2, keepdim=True).clamp(min=-126.0) - 23 - EXTRA_BITS)
    total = ((terms / unit).trunc() * unit).sum(2)
    unit = torch.exp2(_exponent(total).clamp(min=-126.0) - 23)
    return (total / unit).trunc() * unit


def _exponent(x: Tensor) -> Tensor:
    return torch.where(x == 0, -1000.0, (torch.frexp(x)[1] - 1).double())


def product(left: Tensor, right: Tensor, kept: Tensor | None = None) -> Tensor:
    """kept + left (M, K) right (K, N), float32, in blocks of 64 terms; operands of 16 bits are as they are stored."""
    total = torch.zeros(len(left), right.shape[1], device=left.device) if kept is None else kept
    for first in range(0, left.shape[1], BLOCK):
        here = slice(first, first + BLOCK)
        block = split_product if left.dtype == torch.float32 else _short_block
        total = block(left[:, here], right[here].T, total)
    return total


def _short_block(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    mine = total.double()
    for first in range(0, left.shape[1], STEP):
        here = slice(first, first + STEP)
        mine = _instruction(mine, left[:, here].double(), right[:, here].double())
    return mine.float()


def emulated(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, scale: float) -> dict[str, Tensor]:
    """out, lse, dq, dk, dv of one head, causal: (S, D) each."""
    log2e, hidden = LOG2E.to(q.device), torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).triu(1)
    scores = (product(q, k.T) * (torch.tensor(scale, device=q.device) * log2e)).masked_fill(hidden, -math.inf)
    top, total = torch.full((len(q), 1), -math.inf, device=q.device), torch.zeros(len(q), 1, device=q.device)
    sums = torch.zeros(len(q), v.shape[1], device=q.device)
    for first in range(0, len(k), BLOCK):
        here = slice(first, first + BLOCK)
        new = scores[:, here].amax(1, keepdim=True).maximum(top)
        p, factor = torch.exp2(scores[:, here] - new), torch.exp2(top - new)
        total, top = total * factor + p.sum(1, keepdim=True), new
        sums = product(p.to(v.dtype), v[here], sums * factor)
    out, lse = (sums / total).to(q.dtype), top / log2e + total.log()
    delta = (dout.float() * out.float()).sum(1, keepdim=True)
    again = product(k, q.T).T * scale  # the other operand is split first
    p = torch.exp((again - lse).masked_fill(hidden, -math.inf)).to(q.dtype)
    ds = ((product(dout, v.T) - delta) * p.float() * scale).to(q.dtype)
    found = {"out": out, "lse": lse[:, 0], "dq": product(ds, k), "dk": product(ds.T, q), "dv": product(p.T, dout)}
    return {name: x if name == "lse" else x.to(q.dtype) for name, x in found.items()}


def emulation(inputs: Inputs, scale: float) -> dict[str, Tensor]:
    """Of all heads, in the kernel's shapes."""
    each = [emulated(*(x[0, :, head] for x in inputs.tensors), scale) for head in range(inputs.q.shape[2])]
    return {name: torch.stack([x[name] for x in each], 0 if name == "lse" else 1)[None] for name in each[0]}
