"""Two roundings of healthy functions that the running bounds do not count: a second look at results beyond those.

q times the scale in 16 bits. Each element of the product is rounded once, and all keys of a query meet that error. The
bounds take the errors of a row's scores as independent. Where keys have a part in common, their errors have, too. In
the softmax what all keys have in common cancels; lse has all of it, 3 times its limit where one vector is added to all
keys. What the rounding makes of q can be computed, so lse is compared with attention of that q.

A maximum with a gradient. Of exp(s - max s) autograd takes a gradient through the maximum, unless it is detached. That
is the gradient of lse, g, less the sum of a row's dS: 0, and in rounded arithmetic c. So c scale k is added to dq and
c scale q to dk of the largest score's key k. c has the errors of delta and of dP, as `accuracy/bound/README.md` has
them in sections 4 and 5, and those of the sum over n keys. u is the unit roundoff of sums, by which a computed value
(exp, a quotient) errs; w is that of the inputs' format where it is a coarser one, to which P (twice), dP, out and delta
may be rounded, each by w / sqrt(3):

    var c = n u^2 / 12 (sum_d dout^2 (sum_j p^2 v^2 + out^2) + (sum p^2 + 1) delta^2 + sum_j dS^2)
            + D u^2 / 12 (sum_d (dout out)^2 + delta^2 + sum_j p^2 (sum_d dout^2 v^2 + dP^2))
            + 4 (u^2 + w^2 / 3) (sum_d (dout out)^2 + delta^2 + sum_j p^2 dP^2),
    |c| <= 4 (gamma_(n + D + 8) + 4 w) (sum_j p sum_d |dout| |v| + |g|).

With a gradient of lse |delta| + |g| stands in the place of |delta|. c is one error of a row, of which the limits count
up to `MOST` independent ones: they reach half as far, so `MOST` times the variance is added. The key of the largest
score may be any whose exact score is below the largest one by no more than both may be off. The gradient of a bias has
c, too, and is not looked at a second time.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from accuracy.bound.limits import MOST
from accuracy.bound.policy import Policy, grown, unit
from accuracy.bound.running import Bound
from accuracy.reference.float64 import Reference, seen_keys

BLOCK_ELEMENTS = 2**19
"""Scores held at once: half a gigabyte of keys of 128 dims, where all scores of a row are equal."""


def scaled(q: Tensor, k: Tensor, scale: float, to: Callable[[Tensor], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield q and k, float64, as they are where q times the scale, q times the scale and log2 e, or q and k times the
    root of the scale are rounded. to: what rounds them, of float32."""
    for of_q, of_k in ((scale, 1.0), (scale * math.log2(math.e), 1.0), (math.sqrt(scale), math.sqrt(scale))):
        yield to(q.float() * of_q).double() / of_q, to(k.float() * of_k).double() / of_k


def through_maximum(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, reference: Reference, bounds: dict[str, Bound], policy: Policy, *,
    scale: float, causal: bool, top_left: bool = False, window: int | None = None, documents: Sequence[int] = (),
    softcap: float | None = None, mask: Tensor | None = None, dlse: Tensor | None = None, **_: Any,
) -> dict[str, Bound]:  # fmt: skip
    """Return these bounds, those of dq and dk with what autograd adds through a maximum. Arguments: those of
    `accuracy.bound.running.bounds`, whose result `bounds` is; sinks add nothing."""
    share = q.shape[2] // k.shape[2]
    seen = seen_keys(q.shape[1], k.shape[1], causal, top_left, window, documents)
    seen, at = seen.to(q.device), torch.arange(k.shape[1], device=q.device)
    certain, variance = ({name: bounds[name].certain.new_zeros(x.shape) for name, x in (("dq", q), ("dk", k))}
                         for _ in range(2))  # fmt: skip
    step = max(1, BLOCK_ELEMENTS // k.shape[1])
    for item, head, first in itertools.product(range(q.shape[0]), range(q.shape[2]), range(0, q.shape[1], step)):
        rows = slice(first, first + step)
        of_rows, of_keys = (item, rows, head), (item, slice(None), head // share)
        query, gradient = q[of_rows].double(), dout[of_rows].double()
        key, value = k[of_keys].double(), v[of_keys].double()
        visible = (at >= seen[rows, :1]) & (at < seen[rows, 1:])
        scores, visible = _scores(query, key, visible, scale, softcap, mask, (item, head, rows))
        lse, delta = (x[item, head, rows, None] for x in (reference.lse, reference.delta))
        of_lse = torch.zeros_like(lse) if dlse is None else dlse[item, head, rows, None].double()
        out = reference.out[of_rows]
        most, squared = _sum_of_ds(scores, value, gradient, out, lse, delta, of_lse, policy)
        most, squared = scale * most, scale**2 * MOST * squared
        off = (query.abs() @ key.abs().T).mul_(visible).amax(1, keepdim=True) * scale
        off = 2 * off * (grown(q.shape[-1] + 4, policy.u) + 3 * _short(policy))
        near = (scores >= scores.amax(1, keepdim=True) - off).double()
        places = scores.topk(int(near.sum(1).max()), 1).indices
        largest = (key.abs()[places] * near.gather(1, places)[..., None]).amax(1)
        certain["dq"][of_rows] += most * largest
        variance["dq"][of_rows] += squared * largest.square()
        certain["dk"][of_keys] += near.T @ (most * query.abs())
        variance["dk"][of_keys] += near.T @ (squared * query.square())
    wider = {}
    for name, bound in ((name, bounds[name]) for name in certain):  # nan: of a row without dout, whose c is 0
        more, spread = (x[name].nan_to_num(nan=0.0, posinf=torch.inf) for x in (certain, variance))
        wider[name] = Bound.of(bound.certain + more, bound.variance + spread)
    return {**bounds, **wider}


def _short(policy: Policy) -> float:
    """Unit roundoff of products, 0 where sums have no finer one."""
    return unit(policy.products) * (policy.products != policy.sums)


def _scores(
    query: Tensor, key: Tensor, visible: Tensor, scale: float, softcap: float | None, mask: Tensor | None,
    place: tuple[int, int, slice],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the scores as softmax has them (R, C), those of hidden keys -inf, and which are seen."""
    item, head, rows = place
    scores = query @ key.T * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if mask is not None:
        own = mask[item % mask.shape[0], head % mask.shape[1], rows]
        if own.dtype == torch.bool:
            visible = visible & own
        else:
            scores = scores + own.double()
    return scores.masked_fill(~visible, -torch.inf), visible


def _sum_of_ds(
    scores: Tensor, value: Tensor, dout: Tensor, out: Tensor, lse: Tensor, delta: Tensor, dlse: Tensor, policy: Policy
) -> tuple[Tensor, Tensor]:
    """Return what |c| is at most and the variance of c, each (R, 1). lse, delta and dlse are columns (R, 1)."""
    u, short, dim = policy.u, _short(policy), value.shape[1]
    p, dp = (scores - lse).exp(), dout @ value.T
    of_ds, pulls = (p * (dp - delta + dlse)).square().sum(1, keepdim=True), (delta.abs() + dlse.abs()).square()
    terms, p2 = (p > 0).sum(1, keepdim=True).double(), p.square()
    of_out, of_dp = (dout * out).square().sum(1, keepdim=True), (p2 * dp.square()).sum(1, keepdim=True)
    summed = (dout.square() * (p2 @ value.square() + out.square())).sum(1, keepdim=True)
    summed = summed + (p2.sum(1, keepdim=True) + 1) * pulls + of_ds
    products = of_out + pulls + of_dp + (p2 * (dout.square() @ value.square().T)).sum(1, keepdim=True)
    variance = u**2 / 12 * (terms * summed + dim * products)
    variance = variance + 4 * (u**2 + short**2 / 3) * (of_out + pulls + of_dp)
    most = (dout.abs() * (p @ value.abs())).sum(1, keepdim=True) + dlse.abs()
    return 4 * (grown(terms + dim + 8, u) + 4 * short) * most, variance
