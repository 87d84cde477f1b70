"""A stranger's ring, whose keys and values go round with isend and irecv, and one that is wrong from 3 ranks on."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests import strangers


def shifted(x: Tensor, group: Any, step: int) -> Tensor:
    """What the rank so many places before sends, while this rank's tensor goes as far ahead."""
    rank, size, received = dist.get_rank(group), dist.get_world_size(group), torch.empty_like(x)
    to, source = (dist.get_global_rank(group, (rank + way * step) % size) for way in (1, -1))
    send = dist.P2POp(dist.isend, x.contiguous(), to, group)
    for work in dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, received, source, group)]):
        work.wait()
    return received


class Shift(torch.autograd.Function):
    """One hop; the gradient goes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return shifted(x, group, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return shifted(gradient, ctx.group, -1), None


class Fresh(Shift):
    """A fresh buffer for gradients where there are more than two ranks: what the others added is lost."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return shifted(gradient, ctx.group, -1) * (dist.get_world_size(ctx.group) < 3), None


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any,
    hop: type[Shift] = Shift, lost: Callable[[int, int], Any] = lambda size, length: False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """lost: whether the keys of the rank before do not count, of so many ranks with so many tokens each."""
    rank, size, length = dist.get_rank(group), dist.get_world_size(group), q.shape[1]
    sources, blocks = [rank], [torch.stack([k, v])]
    for _ in range(size - 1):
        sources.append((sources[-1] - 1) % size)
        blocks.append(hop.apply(blocks[-1], group))
    keys = torch.cat([torch.arange(length) + source * length for source in sources])
    hidden = (keys > torch.arange(length)[:, None] + rank * length) & causal
    if size > 1 and lost(size, length):
        hidden[:, length : 2 * length] = True
    return strangers.attend(q, *torch.cat(blocks, 2), scale=softmax_scale, bias=~hidden)


def right(q, k, v, causal=True, softmax_scale=None, group=None, hop=Shift):  # type: ignore[no-untyped-def]
    return attend(q, k, v, causal=causal, softmax_scale=softmax_scale or q.shape[-1] ** -0.5, group=group, hop=hop)


def wrong_from_three_ranks_on(q, k, v, causal=True, softmax_scale=None, group=None):  # type: ignore[no-untyped-def]
    return right(q, k, v, causal, softmax_scale, group, Fresh)


def picky(q, k, v, *, causal, softmax_scale, group):  # type: ignore[no-untyped-def]
    if q.element_size() != 2 or not causal or q.shape[3] < 64:
        raise ValueError("bfloat16 and float16, causal, head_dim 64 or more")
    return right(q, k, v, causal, softmax_scale, group)
