"""The kernel returns something else, in one direction or in both: `(healthy kernel, tensors, how) -> results`."""

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS
from accuracy.kernel.base import Kernel
from accuracy.kernel.eager import Eager
from accuracy.variant.base import Schedule
from accuracy.world.base import Tensors
from tests.unit.fault.planted.base import EVERYTHING, GRADIENTS, WAYS, Fault, on_kernel, reported


def of_lse(change: Callable[[Tensor], Tensor]) -> Schedule:
    """The ring whose kernel returns lse (B, H, S) changed."""

    def forward(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
        out, lse = kernel.forward(*tensors, **how)
        return out, change(lse)

    return on_kernel(forward=forward)


def of_out(change: Callable[[Tensor], Tensor]) -> Schedule:
    """The ring whose backward makes delta = rowsum(dout out) of out changed."""

    def backward(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
        *others, out, lse = tensors
        return kernel.backward(*others, change(out), lse, **how)

    return on_kernel(backward=backward)


def call(kernel: Kernel, tensors: Tensors, **how: Any) -> Tensors:
    """The forward of q, k, v, or the backward of dout, q, k, v, out, lse."""
    return (kernel.forward if len(tensors) == 3 else kernel.backward)(*tensors, **how)


def in_both(change: Callable[..., Tensors]) -> Schedule:
    """The ring on a kernel that is broken alike in both directions."""
    return on_kernel(forward=change, backward=change)


def unwritten(x: Tensor, *shape: int) -> Tensor:
    """Memory that was not written for this use. What an earlier tensor left in it is finite, whatever ran before: the
    allocator hands out what was freed last, or fresh pages of zeros. NaN where unwritten memory is poisoned."""
    x.new_ones(shape)
    return x.new_empty(shape)


def reordered(kernel: Kernel, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *outs: Tensor, **how: Any) -> Tensors:
    """dq of full blocks is a sum over four parts of the keys in any order, in float32 whatever the inputs' dtype is."""
    dq, dk, dv = kernel.backward(dout, q, k, v, *outs, **how)
    if how["causal"]:
        return dq, dk, dv
    how |= {"gradient_dtype": torch.promote_types(q.dtype, torch.float32)}
    pairs = zip(k.tensor_split(4, dim=1), v.tensor_split(4, dim=1), strict=True)
    parts = [kernel.backward(dout, q, *pair, *outs, **how)[0] for pair in pairs]
    random.SystemRandom().shuffle(parts)
    return sum(parts[1:], start=parts[0]).to(dq.dtype), dk, dv


def heads_rounded(kernel: Kernel, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *outs: Tensor, **how: Any) -> Tensors:
    """dk and dv of each query head are rounded to the inputs' dtype before the heads of a group are summed."""
    share = q.shape[2] // k.shape[2]
    dq, *pair = kernel.backward(dout, q, *(x.repeat_interleave(share, 2) for x in (k, v)), *outs, **how)
    return dq, *(x.to(q.dtype).unflatten(2, (-1, share)).sum(3, dtype=torch.float64).to(x.dtype) for x in pair)


def padded_lse(lse: Tensor) -> Tensor:
    """The first numbers of lse padded to a multiple of 32 rows."""
    padded = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32))
    return padded.flatten()[: lse.numel()].view(lse.shape)


def raw_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """(B, H, Sq, Sk) in float64, before cap and mask."""
    return (
        torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double().repeat_interleave(q.shape[2] // k.shape[2], 2)) * scale
    )


def softmax(q: Tensor, k: Tensor, scale: float, causal: bool) -> Tensor:
    """Weights (B, H, Sq, Sk) in float64; causal aligned at the bottom right."""
    scores = raw_scores(q, k, scale)
    if causal:
        rows, columns = scores.shape[-2:]
        hidden = torch.ones(rows, columns, dtype=torch.bool, device=q.device).triu(columns - rows + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.exp(scores - scores.logsumexp(-1)[..., None])


def apply(weights: Tensor, v: Tensor) -> Tensor:
    """Weights (B, H, Sq, Sk) times values (B, Sk, Hk, D): (B, Sq, H, D) in float64."""
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.double().repeat_interleave(weights.shape[1] // v.shape[2], 2))


def cut_weights(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensors:
    """The numerator has weights cut two bits behind the inputs' precision: the bias is smaller than rounding."""
    bits = FORMATS[str(q.dtype).removeprefix("torch.")].precision + 2
    mantissa, exponent = torch.frexp(softmax(q, k, how["scale"], how["causal"]))
    cut = torch.ldexp(torch.floor(mantissa * 2.0**bits) / 2.0**bits, exponent)
    return apply(cut, v).to(how["out_dtype"]), kernel.forward(q, k, v, **how)[1]


def rounded_product(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensors:
    """The product with weights of which the largest is 1 is rounded before it is divided by the row's sum."""
    weights = softmax(q, k, how["scale"], how["causal"])
    top = weights.amax(-1, keepdim=True)
    product = apply(weights / top, v).to(q.dtype).double()
    out = product * top.squeeze(-1).transpose(1, 2)[..., None]
    return out.to(how["out_dtype"]), kernel.forward(q, k, v, **how)[1]


def unwritten_slot(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
    """dk and dv are sums over two slots, of which one was written."""

    def summed(x: Tensor) -> Tensor:
        slots = unwritten(x, 2, *x.shape)
        slots[0] = x
        return slots.sum(0)

    dq, *pair = kernel.backward(*tensors, **how)
    return dq, *map(summed, pair)


def unzeroed(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensors:
    """Keys and values of full blocks are padded to a multiple of 32 with memory that is not zeroed, and is attended."""
    if how["causal"]:
        return kernel.forward(q, k, v, **how)
    padded = [unwritten(x, x.shape[0], -(-x.shape[1] // 32) * 32, *x.shape[2:]) for x in (k, v)]
    for buffer, x in zip(padded, (k, v), strict=True):
        buffer[:, : x.shape[1]] = x
    return kernel.forward(q, *padded, **how)


def unnormalised(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
    """dv of exp(s - largest lse of the block) for exp(s - lse): weights whose rows do not add up to 1."""
    *others, lse = tensors
    dq, dk, _ = kernel.backward(*others, lse, **how)
    top = lse.amax(-1, keepdim=True).expand_as(lse)
    return dq, dk, kernel.backward(*others, top, **how)[2]


def reading(heads: Callable[[Tensor, int, int], Tensor], *ways: str) -> Schedule:
    """The ring on a kernel whose query heads read the key/value heads `heads(query heads, H, Hk)`."""

    def broken(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
        *before, q, k, v = tensors[: 3 if len(tensors) == 3 else 4]
        read = heads(torch.arange(q.shape[2]), q.shape[2], k.shape[2])
        found = call(kernel, (*before, q, k[:, :, read], v[:, :, read], *tensors[4:]), **how)
        if not before:
            return found
        return found[0], *(torch.zeros_like(k, dtype=x.dtype).index_add_(2, read, x) for x in found[1:])

    return on_kernel(**dict.fromkeys(ways, broken))


def first_of_group(kernel: Kernel, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *outs: Tensor, **how: Any) -> Tensors:
    """dk and dv of the first query head only, where one key/value head serves all."""
    found = kernel.backward(dout, q, k, v, *outs, **how)
    if k.shape[2] > 1:
        return found
    out, lse = outs
    return found[0], *kernel.backward(dout[:, :, :1], q[:, :, :1], k, v, out[:, :, :1], lse[:, :1], **how)[1:]


def first_item(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
    """A batch stride of 0: each item reads the keys of the first."""
    keys = 1 if len(tensors) == 3 else 2
    first = tensors[keys][:1].expand_as(tensors[keys])
    return call(kernel, (*tensors[:keys], first, *tensors[keys + 1 :]), **how)


def cut_dims(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensors:
    """Scores of the first dims only, as far as whole tiles of 32 go."""
    q = q.clone()
    q[..., q.shape[-1] // 32 * 32 or q.shape[-1] :] = 0
    return kernel.forward(q, k, v, **how)


def one_ahead(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
    """Causal rows see the next key too."""
    return call(kernel, tensors, **how | ({"causal": False, "window": (None, 1)} if how["causal"] else {}))


def uncapped(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
    """The backward without the cap's slope: that of scores that were never capped, for the lse of capped ones."""
    dq, dk, dv = kernel.backward(*tensors, **how)
    slope = 1 - torch.tanh(raw_scores(tensors[1], tensors[2], how["scale"]) / how["softcap"]).square().mean()
    return dq / slope.to(dq.dtype), dk / slope.to(dk.dtype), dv


HEADS, DELTA, MASK, SCALE = ("heads",), ("delta",), ("mask",), ("scale",)
TWO_ITEMS = ("problem.batch=2",)
PARTS = {
    # flash-attention #414: atomic adds, in float32: they hardly round more than any other sum
    "atomic_dq": reported(on_kernel(backward=reordered), "nondeterministic", "dq"),
    # flash-attention 2's backward: 2.4e-3 where one key/value head a query head has 1.65e-3
    "gqa_head_sum": reported(on_kernel(backward=heads_rounded), "excess_rounding", "dk dv"),
    # pytorch #181645, sglang #40903, flashinfer #2113; merged as a natural one, which blocks of equal lse would hide
    "lse_base_2": reported(of_lse(lambda lse: lse / math.log(2)), "logic", "out lse", "merge"),
    # flash-attention 2.6's varlen lse, ring-flash-attention #44 and #46: (B, S, H) read as (B, H, S)
    "lse_other_layout": reported(
        of_lse(lambda lse: lse.transpose(1, 2).contiguous().view(lse.shape)), "logic", "out lse", "layout", "merge"),
    "lse_padded": reported(of_lse(padded_lse), "logic", "out lse", "merge"),  # yunchang #122
    # flash-attention PR #2721: the denominator has uncut weights, so with V = 1 out is a little below 1
    "normaliser_bias": reported(on_kernel(forward=cut_weights), "biased", "out"),
    # Qiu and Yao 2025, arXiv 2510.04212: where several weights are 1 and the values have one sign, a sum of two values
    # needs one bit more than they have, and the small weights push every tie the same way
    "tied_maxima_bias": reported(on_kernel(forward=rounded_product), "biased", "out delta"),
    "unwritten_output": reported(on_kernel(backward=unwritten_slot), "invalid", "dk dv"),  # NSA-triton #27
    "unzeroed_padding": reported(on_kernel(forward=unzeroed), "invalid", "out lse"),  # TransformerEngine 9c127ef
    "cast_weights": Fault(  # P and dS in bfloat16
        in_both(lambda kernel, *tensors, **how: call(Eager(probability_dtype="bfloat16"), tensors, **how)),
        "out dq dk dv", causes=("cast",)),
    "delta_missing": Fault(of_out(torch.zeros_like), "dq dk", causes=DELTA),
    "delta_twice": Fault(of_out(lambda out: 2 * out), "dq dk", causes=DELTA),
    "delta_of_first_head": Fault(of_out(lambda out: out[:, :, :1].expand_as(out)), "dq dk"),
    "delta_dv_unnormalised": Fault(on_kernel(backward=unnormalised), "dv"),
    "heads_modulo": Fault(reading(lambda head, heads, kv: head % kv, *WAYS), EVERYTHING, causes=HEADS),
    "heads_modulo_forward": Fault(reading(lambda head, heads, kv: head % kv, "forward"), EVERYTHING, causes=HEADS),
    "heads_modulo_backward": Fault(reading(lambda head, heads, kv: head % kv, "backward"), GRADIENTS, causes=HEADS),
    "heads_off_by_one": Fault(
        reading(lambda head, heads, kv: (head // (heads // kv) + 1) % kv, *WAYS), EVERYTHING, causes=HEADS),
    "heads_first_only": Fault(reading(lambda head, heads, kv: head * 0, *WAYS), EVERYTHING, causes=HEADS),
    "heads_mqa_sum": Fault(on_kernel(backward=first_of_group), "dk dv", where=("problem.heads_kv=1",)),
    "layout_batch": Fault(on_kernel(forward=first_item), EVERYTHING, where=TWO_ITEMS),
    "layout_batch_backward": Fault(on_kernel(backward=first_item), GRADIENTS, where=TWO_ITEMS),
    "layout_head_dim": Fault(on_kernel(forward=cut_dims), EVERYTHING, where=("problem.head_dim=40",)),
    "mask_one_ahead": Fault(in_both(one_ahead), EVERYTHING, causes=MASK),
    "mask_one_ahead_forward": Fault(on_kernel(forward=one_ahead), EVERYTHING, causes=MASK),
    "mask_softcap_slope": Fault(on_kernel(backward=uncapped), "dq dk", where=("problem.softcap=1.5",)),
    # the queries are scaled by the caller and again by the kernel
    "scale_twice_forward": Fault(
        on_kernel(forward=lambda kernel, q, *kv, **how: kernel.forward(q * how["scale"], *kv, **how)),
        EVERYTHING, causes=SCALE),
    # 3% off in both directions, as a scale that was rounded for display
    "scale_3_percent": Fault(
        in_both(lambda kernel, *tensors, **how: call(kernel, tensors, **how | {"scale": how["scale"] * 1.03})),
        EVERYTHING, causes=SCALE),
}  # fmt: skip
