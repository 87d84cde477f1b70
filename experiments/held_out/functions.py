"""Attention as public reports have it, with and without the reported mistake, in plain torch.

Each is f(q, k, v, *, causal, softmax_scale) -> out; q, out (B, Sq, H, D), k, v (B, S, Hk, D). Where ranks share the
work they are told `group`, a process group, and a rank's tokens follow those of the rank before.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def wide(x: Tensor, of: Tensor | None = None) -> Tensor:
    """(B, H, S, D) in the format of sums; of: each query head's head of keys."""
    x = x.transpose(1, 2).to(torch.promote_types(x.dtype, torch.float32))
    return x if of is None else x[:, of]


def heads_of(q: Tensor, k: Tensor) -> Tensor:
    return torch.arange(q.shape[2]) // (q.shape[2] // k.shape[2])


def places(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of queries and keys; the last query is at the last key."""
    keys = torch.arange(k.shape[1])
    return keys[k.shape[1] - q.shape[1] :], keys


def visible(queries: Tensor, keys: Tensor, causal: bool, window: int = -1) -> Tensor:
    """Who sees whom, by positions."""
    ahead = keys - queries[:, None]
    seen = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
    return seen & (ahead.abs() <= window) if window >= 0 else seen


class _Attend(torch.autograd.Function):
    """A kernel with a backward of its own. seen, back: the masks of both; where the backward's has more keys, zeros are
    behind the last one. of: each query head's head of keys; stored: what the backward takes for k and v."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor, back: Tensor | None = None,
        of: Tensor | None = None, stored: tuple[Tensor, ...] | None = None,
    ) -> Tensor:  # fmt: skip
        of = heads_of(q, k) if of is None else of
        scores = (wide(q) @ wide(k, of).mT * scale).masked_fill(~seen, -math.inf)
        lse = scores.logsumexp(-1, keepdim=True)
        out = ((scores - lse).exp() @ wide(v, of)).transpose(1, 2).to(q.dtype)
        ctx.save_for_backward(q, *(stored or (k, v)), out, lse)
        ctx.how = scale, seen if back is None else back, of
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        scale, seen, of = ctx.how
        keys, values = (F.pad(wide(x, of), (0, 0, 0, seen.shape[1] - k.shape[1])) for x in (k, v))
        weights = ((wide(q) @ keys.mT * scale).masked_fill(~seen, -math.inf) - lse).exp()
        slope = weights * (wide(dout) @ values.mT - (wide(dout) * wide(out)).sum(-1, keepdim=True)) * scale
        dk, dv = (
            torch.zeros_like(wide(k)).index_add(1, of, x[:, :, : k.shape[1]]).transpose(1, 2).to(k.dtype)
            for x in (slope.mT @ wide(q), weights.mT @ wide(dout))
        )
        return (slope @ keys).transpose(1, 2).to(q.dtype), dk, dv, None, None, None, None, None


def kernel(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, mistake: str = "") -> Tensor:
    queries, keys = places(q, k)
    heads, group = torch.arange(q.shape[2]), q.shape[2] // k.shape[2]
    if mistake == "four queries" and q.element_size() == 2:
        queries = (queries // 4 * 4 + 3).clamp(max=k.shape[1] - 1)
    seen = visible(queries, keys, causal)
    back = {"causal backward": visible(queries, keys, True),
            "first corner": visible(queries - queries[0], keys, causal)}.get(mistake)  # fmt: skip
    of = {"divided by heads": heads // k.shape[2] % k.shape[2], "tiled heads": heads % k.shape[2]}.get(mistake)
    out = _Attend.apply(q, k, v, softmax_scale, seen, back, of)
    dealt = heads % group * group + heads // group if mistake == "colliding heads" else heads
    return out * torch.isin(heads, dealt)[:, None]


def padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    softmax_scale: float,
    counted: bool = False,
    backward: bool = False,
) -> Tensor:
    """Behind the last key zeros fill its tile of 128. counted: not hidden; backward: there alone, at half of a tile."""
    seen, more = visible(*places(q, k), causal), -k.shape[1] % 128
    if backward:
        back = F.pad(seen, (0, more if more == 64 else 0), value=counted)
        return _Attend.apply(q, k, v, softmax_scale, seen, back)
    k, v = (F.pad(x, (0, 0, 0, 0, 0, more)) for x in (k, v))
    return _Attend.apply(q, k, v, softmax_scale, F.pad(seen, (0, more), value=counted))


def windowed(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, window_size: tuple[int, int] = (-1, -1),
    lost: bool = False,
) -> Tensor:  # fmt: skip
    seen, back = (visible(*places(q, k), causal, each) for each in (window_size[0], -1 if lost else window_size[0]))
    return _Attend.apply(q, k, v, softmax_scale, seen, back)


KEPT: dict[Any, float] = {}


def kept_graph(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """A graph is found again by shapes and dtype, with the scale of its first call in it."""
    scale = KEPT.setdefault((q.shape, k.shape, q.dtype, causal), softmax_scale)
    return kernel(q, k, v, causal=causal, softmax_scale=scale)


def by_lse(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Weights are exp(score - lse), and autograd makes the backward."""
    of = heads_of(q, k)
    scores = (wide(q) @ wide(k, of).mT * softmax_scale).masked_fill(~visible(*places(q, k), causal), -math.inf)
    return ((scores - scores.logsumexp(-1, keepdim=True)).exp() @ wide(v, of)).transpose(1, 2).to(q.dtype)


def scaled_query(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """The scaled query is rounded before the product."""
    return kernel((q * softmax_scale).to(q.dtype), k, v, causal=causal, softmax_scale=1.0)


def blocks(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, right: bool = False, mistake: str = ""
) -> Tensor:
    """Softmax as it goes, 64 keys after 64 keys, from the left or the right."""
    of, seen, starts = heads_of(q, k), visible(*places(q, k), causal), range(0, k.shape[1], 64)
    top = torch.full((*wide(q).shape[:3], 1), -math.inf, dtype=wide(q).dtype)
    total, out = torch.zeros_like(top), torch.zeros_like(wide(q))
    for start in reversed(starts) if right else starts:
        at = slice(start, start + 64)
        scores = (wide(q) @ wide(k[:, at], of).mT * softmax_scale).masked_fill(~seen[:, at], -math.inf)
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        finite = new.masked_fill(new == -math.inf, 0.0)
        shrink = ((finite if mistake == "old maximum" and start else top) - finite).exp()
        weights = (scores - finite).exp()
        total, out = total * shrink + weights.sum(-1, keepdim=True), out * shrink + weights @ wide(v[:, at], of)
        top = finite if mistake == "empty block" else new
    return (out / total).transpose(1, 2).to(q.dtype)


def parts(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, default_scale: bool = False
) -> Tensor:
    """Parts of 128 keys are joined by their maxima; default_scale: these are scaled by D**-0.5 whatever the scale."""
    of, seen, found = heads_of(q, k), visible(*places(q, k), causal), []
    for start in range(0, k.shape[1], 128):
        at = slice(start, start + 128)
        scores = (wide(q) @ wide(k[:, at], of).mT).masked_fill(~seen[:, at], -math.inf)
        top = scores.amax(-1, keepdim=True).clamp(min=-1e30)
        weights = ((scores - top) * softmax_scale).exp()
        told = (top * (q.shape[3] ** -0.5 if default_scale else softmax_scale)).masked_fill(top == -1e30, -math.inf)
        found.append((told, weights.sum(-1, keepdim=True), weights @ wide(v[:, at], of)))
    top = torch.stack([told for told, *_ in found]).amax(0)
    total, out = (sum((told - top).exp() * each[way] for told, *each in found) for way in (0, 1))
    return (out / total).transpose(1, 2).to(q.dtype)


def mine(x: Tensor, group: Any) -> Tensor:
    return x.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)]


class _Gather(torch.autograd.Function):
    """The tokens of all ranks; its backward adds what every rank has to say of mine."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group, found = group, [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(found, x.contiguous(), group=group)
        return torch.cat(found, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        total = gradient.to(torch.promote_types(gradient.dtype, torch.float32)).contiguous()
        dist.all_reduce(total, group=ctx.group)
        return mine(total, ctx.group).to(gradient.dtype), None


class _Take(torch.autograd.Function):
    """A rank's own tokens of what all have computed; its backward gives each the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return mine(x, group).clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _Gather.apply(gradient, ctx.group), None


def all_compute(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any = None, repeated: bool = False
) -> Tensor:
    """Every rank computes all of it. repeated: the backward, too, and the gather's backward adds equal gradients."""
    whole = kernel(*(_Gather.apply(x, group) for x in (q, k, v)), causal=causal, softmax_scale=softmax_scale)
    return (_Take.apply if repeated else mine)(whole, group)


def ring(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any = None, mistake: str = ""
) -> Tensor:
    """A rank's queries meet all keys. Ranks may have unequally many, and fill them up with zeros."""
    rank, sizes = dist.get_rank(group), _Gather.apply(torch.tensor([[q.shape[1]]]), group)[0]
    slot = torch.arange(int(sizes.max()))
    first = sizes.cumsum(0) - sizes
    place = (first[:, None] + slot).flatten()
    used = torch.arange(len(place))[(slot < sizes[:, None]).flatten() | (mistake == "zero keys")]
    if mistake == "text of every rank":
        used = torch.cat([*[used[:8]] * (len(sizes) - 1), used])
    k, v = (F.pad(x, (0, 0, 0, 0, 0, len(slot) - x.shape[1])) for x in (k, v))
    keys, values = (_Gather.apply(x, group)[:, used] for x in (k, v))
    stored = tuple(torch.cat([x] * len(sizes), 1)[:, used] for x in (k, v)) if mistake == "own keys" else None
    seen = visible(torch.arange(q.shape[1]) + first[rank], place[used], causal)
    return _Attend.apply(q, keys, values, softmax_scale, seen, None, None, stored)
