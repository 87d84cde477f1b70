"""Attention with FP8 products on tensor cores, in Triton, forward and backward: e4m3 and e5m2, the accumulator a knob.

The knobs are those of `quantised`, as far as a tensor core has them, and mean the same: that kernel is its emulation,
`kernel.quantised.key_chunk` being `key_chunk` here. The accumulator's bits are the hardware's (Hopper: 14) where a
policy has fewer than 24; where it has 24, sums go to float32 after each instruction, 32 terms: on Hopper the emulation
of that is `fp8_hopper` with `flush_interval=32` (experiments/fp8_fit).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from accuracy.core.dtype import FromZero, OneOf, Whole
from accuracy.core.quantisation import POLICIES, Policy, policy_of
from accuracy.kernel.base import Abilities, Gradients, How, package_missing
from accuracy.kernel.lowp.operand import Operand, cast, turned_back
from accuracy.kernel.triton.available import NEEDS_TRITON, InTriton, interpreting

TAKEN = ("fp8_tensor", "fp8_no_prescale", "fp8_e5m2", "fp8_gradients_e5m2", "fp8_block", "fp8_hadamard", "fp8_hopper",
         "fp8_hopper_flush")  # fmt: skip
Format = Annotated[str, OneOf("e4m3", "e5m2")]
HOPPER = (9, 0)


@dataclass(frozen=True)
class TritonFp8(InTriton):
    """policy: by name; null, in all others: as the policy has it; key_chunk: keys of a tile."""

    policy: Annotated[str, OneOf(*TAKEN)] = "fp8_hopper_flush"
    key_chunk: Annotated[int, OneOf(32, 64, 128)] = 64
    q: Format | None = None
    k: Format | None = None
    v: Format | None = None
    p: Format | None = None
    ds: Format | None = None
    do: Format | None = None
    granularity: Annotated[str, OneOf("tensor", "head", "block")] | None = None
    block: Whole | None = None
    p_prescale: Annotated[float, Gt(0)] | None = None
    hadamard: bool | None = None
    flush_interval: FromZero | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what the kernel has not."""
        if self.granularity == "block" and POLICIES[self.policy].cut_products:
            raise ValueError(
                f"granularity=block with policy={self.policy}; allowed: policy=fp8_block (a tile's own sum)"
            )
        policy = self.resolved()
        if policy.granularity == "block" and not policy.block == self.key_chunk != 32:
            given = f"granularity=block with block={policy.block} and key_chunk={self.key_chunk}"
            raise ValueError(f"{given}; allowed: both 64, or both 128 (a tile has one scale)")
        if policy.flush_interval > self.key_chunk and policy.flush_interval % 128:
            given = f"flush_interval={policy.flush_interval} with key_chunk={self.key_chunk}"
            raise ValueError(f"{given}; allowed: 32, 64, or multiples of 128")

    def resolved(self) -> Policy:
        """The policy with its changes."""
        own = {name: value for name, value in vars(self).items() if name not in ("policy", "key_chunk")}
        return policy_of(self.policy, **own)

    def abilities(self, device: str) -> Abilities:
        """bfloat16, float16 and float32 inputs, which it casts; head_dim to 256 in multiples of 16; float32 results.

        On the CPU only in Triton's interpreter, whose sums are float32.
        """
        if device == "cuda":
            missing = "" if (here := torch.cuda.get_device_capability()) >= (8, 9) else _wants(f"this one has {here}")
        else:
            missing = "" if interpreting() else _wants("here is a CPU")
        if missing := package_missing("triton", NEEDS_TRITON) or missing:
            return Abilities(missing=missing)
        return Abilities(
            dtypes=("float16", "float32") if interpreting() else ("bfloat16", "float16", "float32"),
            partial_dtypes=("float32",), head_dim_min=16, head_dim_max=256, head_dim_multiple=16,
        )  # fmt: skip

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        from _fp8_forward import attend

        policy = self.resolved()
        operands = _cast(policy, q, k, v)
        return attend(*operands, policy, self.key_chunk, scale=how.scale, causal=how.causal, out_dtype=how.dtype)

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        from _fp8_backward import differentiate

        policy = self.resolved()
        dq, dk, dv = differentiate(
            *_cast(policy, q, k, v), cast(dout, policy.do, policy), (dout, out, lse), policy, self.key_chunk,
            scale=how.scale, causal=how.causal, gradient_dtype=torch.float32 if policy.hadamard else how.dtype,
        )  # fmt: skip
        return turned_back(dq, policy), turned_back(dk, policy), dv


def _cast(policy: Policy, q: Tensor, k: Tensor, v: Tensor) -> tuple[Operand, Operand, Operand]:
    query, key = (cast(x, word, policy, turned=True) for x, word in ((q, policy.q), (k, policy.k)))
    return query, key, cast(v, policy.v, policy)


def _wants(here: str) -> str:
    return f"needs a GPU with FP8 tensor cores (compute capability 8.9 and later), {here}; use kernel=quantised"


KERNEL = TritonFp8
