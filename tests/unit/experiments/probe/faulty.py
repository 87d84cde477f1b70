"""Kernels with one fault each: plain attention, wrong in the one way that a question must notice."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.eager import Eager

HEALTHY = Eager()


@dataclass(frozen=True)
class Kernel:
    """Plain attention, with another forward or backward; as a decorator of a function, with that as its forward."""

    forward: Callable[..., Any] = HEALTHY.forward
    backward: Callable[..., Any] = HEALTHY.backward


def with_lse(change: Callable[[Tensor], Tensor]) -> Kernel:
    @Kernel
    def kernel(q, k, v, **how):
        out, lse = HEALTHY.forward(q, k, v, **how)
        return out, change(lse)

    return kernel


def lse_in_base(base: float) -> Kernel:
    return with_lse(lambda lse: lse / math.log(base))


lse_transposed = with_lse(lambda lse: lse.transpose(1, 2).contiguous())


@Kernel
def top_left(q, k, v, *, causal, **how):
    queries, keys = q.shape[1], k.shape[1]
    if not causal or queries == keys:
        return HEALTHY.forward(q, k, v, causal=causal, **how)
    if queries < keys:
        return HEALTHY.forward(q, k[:, :queries], v[:, :queries], causal=True, **how)
    head = HEALTHY.forward(q[:, :keys], k, v, causal=True, **how)
    tail = HEALTHY.forward(q[:, keys:], k, v, causal=False, **how)
    return torch.cat([head[0], tail[0]], 1), torch.cat([head[1], tail[1]], 2)


no_mask = Kernel(lambda q, k, v, *, causal, **how: HEALTHY.forward(q, k, v, causal=False, **how))


def empty_rows(out_there: float, lse_there: float) -> Kernel:
    """flash-attention's convention, or any other: what out and lse are where a query sees no key."""

    @Kernel
    def kernel(q, k, v, **how):
        out, lse = HEALTHY.forward(q, k, v, **how)
        empty = max(0, q.shape[1] - k.shape[1]) if how["causal"] else 0
        out[:, :empty], lse[:, :, :empty] = out_there, lse_there
        return out, lse

    return kernel


scale_ignored = Kernel(lambda *tensors, scale, **how: HEALTHY.forward(*tensors, scale=0.125, **how))
scale_ignored_in_backward = Kernel(
    backward=lambda *tensors, scale, **how: HEALTHY.backward(*tensors, scale=0.125, **how)
)
scale_in_float32 = Kernel(
    lambda *tensors, scale, **how: HEALTHY.forward(*tensors, scale=float(torch.tensor(scale).float()), **how)
)


@dataclass
class ShortSums:
    """Sums over blocks of keys (or queries, in the backward) are kept in a short dtype between the blocks."""

    dtype: torch.dtype
    block: int
    what: str  # output, denominator, gradients

    def forward(self, q, k, v, *, scale, causal, out_dtype):
        assert not causal
        scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * scale
        top = scores.amax(-1, keepdim=True)
        weights = torch.exp(scores - top)
        total = self._summed(weights, weights.new_ones(1, 1, k.shape[1], 1), "denominator")
        values = v.float().transpose(1, 2)
        out = self._summed(weights, values, "output") / total
        return out.transpose(1, 2).to(out_dtype), (total.log() + top).squeeze(-1)

    def _summed(self, weights: Tensor, values: Tensor, what: str) -> Tensor:
        running: Tensor | None = None
        for part in range(0, weights.shape[-1], self.block):
            step = weights[..., part : part + self.block] @ values[..., part : part + self.block, :]
            running = step if running is None else running + step
            if what == self.what:
                running = running.to(self.dtype).float()
        assert running is not None
        return running

    def backward(self, dout, q, k, v, out, lse, **how):
        if self.what != "gradients":
            return HEALTHY.backward(dout, q, k, v, out, lse, **how)
        gradients: list[Tensor] = []
        for row in range(0, q.shape[1], self.block):
            rows = slice(row, row + self.block)
            part = HEALTHY.backward(dout[:, rows], q[:, rows], k, v, out[:, rows], lse[:, :, rows], **how)
            gradients = [*part] if not gradients else self._joined(gradients, part)
        return tuple(gradients)

    def _joined(self, before: list[Tensor], part: tuple[Tensor, ...]) -> list[Tensor]:
        sums = [(a.to(self.dtype) + b.to(self.dtype)).to(b.dtype) for a, b in zip(before[1:], part[1:], strict=True)]
        return [torch.cat([before[0], part[0]], 1), *sums]


@Kernel
def short_scores(q, k, v, *, scale, causal, out_dtype):
    """Scores are added up channel by channel in bfloat16."""
    scores = torch.zeros(q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    for mine, theirs in zip(q.float().unbind(-1), k.float().unbind(-1), strict=True):
        product = mine.transpose(1, 2)[..., None] * theirs.transpose(1, 2)[:, :, None]
        scores = (scores + product).bfloat16().float()
    lse = (scores * scale).logsumexp(-1)
    weights = torch.exp(scores * scale - lse[..., None])
    return (weights @ v.float().transpose(1, 2)).transpose(1, 2).to(out_dtype), lse


@dataclass
class Unsteady:
    """One element of one tensor is another in every run."""

    tensor: str
    runs: list[int] = field(default_factory=list)

    def forward(self, q, k, v, **how):
        results = HEALTHY.forward(q, k, v, **how)
        return self._shaken(dict(zip(("out", "lse"), results, strict=True)))

    def backward(self, *tensors, **how):
        return self._shaken(dict(zip(("dq", "dk", "dv"), HEALTHY.backward(*tensors, **how), strict=True)))

    def _shaken(self, results: dict[str, Tensor]) -> tuple[Any, ...]:
        if self.tensor in results:
            self.runs.append(1)
            results[self.tensor].flatten()[0:1].fill_(len(self.runs))
        return tuple(results.values())


@Kernel
def ignores_strides(q, k, v, **how):
    """Reads memory as if every input were contiguous."""
    read = (x.as_strided(x.shape, torch.empty(x.shape).stride(), x.storage_offset()) for x in (q, k, v))
    return HEALTHY.forward(*read, **how)


@Kernel
def leaves_rows(q, k, v, **how):
    """Whole tiles of 16 rows are written, the rest is forgotten."""
    whole, lse = HEALTHY.forward(q, k, v, **how)
    out = torch.empty(q.shape, dtype=whole.dtype)
    rows = q.shape[1] // 16 * 16
    out[:, :rows] = whole[:, :rows]
    return out, lse


@Kernel
def writes_beyond(q, k, v, **how):
    """Whole tiles of 16 rows are written, also where the last one is not whole."""
    whole, lse = HEALTHY.forward(q, k, v, **how)
    out = torch.empty(q.shape, dtype=whole.dtype)
    tiles = -(-q.shape[1] // 16) * 16
    beyond = out.storage_offset() + tiles * q.shape[2] * q.shape[3]
    if beyond <= out.untyped_storage().nbytes() // out.element_size():  # else torch itself would object
        out.as_strided((tiles, *q.shape[2:]), out.stride()[1:], out.storage_offset()).fill_(0)
    return out.copy_(whole), lse


@Kernel
def writes_to_inputs(q, k, v, *, scale, **how):
    q.mul_(2)
    return HEALTHY.forward(q, k, v, scale=scale / 2, **how)


@Kernel
def reads_beyond(q, k, v, **how):
    """The last, half-filled tile of keys is read whole and its rest multiplied by 0: NaN stays NaN."""
    out, lse = HEALTHY.forward(q, k, v, **how)
    stop = k.storage_offset() + k.numel()
    if stop < k.untyped_storage().nbytes() // k.element_size():
        out += k.as_strided((1,), (1,), stop) * 0
    return out, lse


def _first(x):
    return torch.cat([x[..., :64], torch.zeros_like(x[..., 64:])], -1)


first_columns = Kernel(  # of values
    forward=lambda q, k, v, **how: HEALTHY.forward(q, k, _first(v), **how),
    backward=lambda dout, q, k, v, out, lse, **how: HEALTHY.backward(_first(dout), q, k, _first(v), out, lse, **how),
)


def _own_lse(dout, q, k, v, out, lse, *, gradient_dtype, **how):
    out, lse = HEALTHY.forward(q, k, v, out_dtype=q.dtype, **how)
    return HEALTHY.backward(dout, q, k, v, out, lse, gradient_dtype=gradient_dtype, **how)


own_lse = Kernel(backward=_own_lse)  # of the keys at hand, not what it is given


def dropping(change: Callable[[Any], dict[str, Any]]) -> Kernel:
    """A kernel that makes another dropout, or none, of the one that it is given."""

    def run(healthy: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *tensors, dropout=None, **how: healthy(*tensors, **change(dropout), **how)

    return Kernel(run(HEALTHY.forward), run(HEALTHY.backward))


draws_nothing = dropping(lambda dropout: {})
drops_by_the_rate = dropping(lambda dropout: {} if dropout is None else {"dropout": dropout.of_heads(1)})
