"""The backward of FP8 attention on tensor cores: seven products in 8 bits, deterministic, as `backward.split`.

dS is cast by one scale of the tensor or of a head, for which a first pass finds its largest value (a training system
takes that of an earlier step), or by that of each tile. P is normalised here, so its prescale matters.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import triton
from _fp8_forward import TYPES, padded_dim
from _fp8_gradients import key_gradient_kernel, query_gradient_kernel
from _fp8_product import flush_of
from torch import Tensor

from accuracy.core.quantisation import FORMATS, Policy
from accuracy.kernel.lowp.operand import Operand
from accuracy.kernel.triton.backward import row_statistics
from accuracy.kernel.triton.tile import LOG2_E, strides

ROWS = 64


@dataclass(frozen=True)
class Backward:
    """Operands of a call and its rows' statistics; the gradients are of the operands, rounded once."""

    q: Operand
    k: Operand
    v: Operand
    dout: Operand
    statistics: tuple[Tensor, Tensor]  # log2(e) lse and delta, see `row_statistics`
    policy: Policy
    key_tile: int
    scale: float
    causal: bool

    @cached_property
    def row_tile(self) -> int:
        """Rows of a tile: those that share a scale, where blocks have one."""
        return self.policy.block if self.policy.granularity == "block" else ROWS

    @cached_property
    def numbers(self) -> tuple[float | int, ...]:
        """The numbers that both kernels take behind their tensors."""
        heads, rows = self.q.codes.shape[1:3]
        heads_kv, keys = self.k.codes.shape[1:3]
        return (
            self.statistics[1].stride(1), self.scale * LOG2_E.value, math.log2(self.policy.p_prescale), rows, keys,
            heads, heads // heads_kv, self.q.scales.shape[-1], self.k.scales.shape[-1], self.q.tokens, self.k.tokens,
        )  # fmt: skip

    @cached_property
    def constants(self) -> tuple[object, ...]:
        """The compile-time ones that both take."""
        dim = self.q.codes.shape[-1]
        own = self.policy.granularity == "block"
        return (
            dim, padded_dim(dim), self.row_tile, self.key_tile, self.causal, TYPES[self.policy.ds],
            FORMATS[self.policy.ds].largest, own, flush_of(self.policy, padded_dim(dim), over_tiles=False).imprecise,
        )  # fmt: skip

    def gradients(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """dq (B, Sq, H, D), dk, dv (B, Sk, Hk, D)."""
        dq = torch.empty_like(self.q.codes, dtype=dtype).transpose(1, 2)
        dk, dv = (torch.empty_like(self.k.codes, dtype=dtype).transpose(1, 2) for _ in range(2))
        largest = self._largest(dq)
        self._query_gradient(dq, largest, find=False)
        self._key_gradient(dk, dv, largest)
        return dq, dk, dv

    def _largest(self, dq: Tensor) -> Tensor:
        """|dS| at its largest, times P's prescale: of the tensor or of each head, (B, H)."""
        batch, heads, rows, _ = self.q.codes.shape
        found = dq.new_zeros(batch, heads, triton.cdiv(rows, self.row_tile), dtype=torch.float32)
        if self.policy.granularity == "block":
            return found
        self._query_gradient(dq, found, find=True)
        per_head = found.amax(-1)
        return per_head if self.policy.granularity == "head" else per_head.amax().expand_as(per_head).contiguous()

    def _query_gradient(self, dq: Tensor, largest: Tensor, *, find: bool) -> None:
        batch, heads, rows, _ = self.q.codes.shape
        flush = flush_of(self.policy, self.key_tile)
        query_gradient_kernel[(triton.cdiv(rows, self.row_tile) * batch * heads,)](
            dq, largest, self.dout.by_token, self.q.by_token, self.k.by_token, self.v.by_token, self.k.transposed,
            *self.statistics, self.dout.scales, self.q.scales, self.k.scales, self.v.scales,
            self.scale, *self.numbers, self.k.transposed.stride(2),
            *strides(dq, self.dout.by_token, self.q.by_token, self.k.by_token, self.v.by_token),
            *self.constants, flush.imprecise, flush.every, find, num_warps=8, num_stages=2,
        )  # fmt: skip

    def _key_gradient(self, dk: Tensor, dv: Tensor, largest: Tensor) -> None:
        batch, heads_kv, keys, _ = self.k.codes.shape
        flush = flush_of(self.policy, self.row_tile)
        key_gradient_kernel[(triton.cdiv(keys, self.key_tile) * batch * heads_kv,)](
            dk, dv, largest, self.dout.by_token, self.q.by_token, self.k.by_token, self.v.by_token,
            self.dout.transposed, self.q.transposed,
            *self.statistics, self.dout.scales, self.q.scales, self.k.scales, self.v.scales,
            self.scale, *self.numbers, self.q.transposed.stride(2),
            *strides(dk, dv, self.dout.by_token, self.q.by_token, self.k.by_token, self.v.by_token),
            *self.constants, TYPES[self.policy.p], flush.imprecise, flush.every, num_warps=8, num_stages=2,
        )  # fmt: skip


def differentiate(
    q: Operand, k: Operand, v: Operand, dout: Operand, exact: tuple[Tensor, Tensor, Tensor], policy: Policy,
    key_tile: int, *, scale: float, causal: bool, gradient_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv of the operands. exact: dout and out (B, Sq, H, D), not cast, and lse (B, H, Sq)."""
    return Backward(q, k, v, dout, row_statistics(*exact), policy, key_tile, scale, causal).gradients(gradient_dtype)
