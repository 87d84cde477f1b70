"""Attention and its gradients in float64, blockwise over query rows, memory linear in the sequence length.

Every mask is one interval of keys a query, perhaps with a tensor beside it. Nothing is imported from the variants, the
kernels or the merge: the formulas are written out from the definition,

    s = scale q k^T,  lse = ln sum exp s,  p = exp(s - lse),  out = p v,
    dv = p^T dout,  delta = sum_d dout out,  ds = p (dout v^T - delta),  dq = scale ds k,  dk = scale ds^T q,

with whole rows at a time, so that no online softmax is needed. A cap c makes the scores c tanh(s / c), and ds has one
more factor, 1 - tanh(s / c)^2. A sink is one more score in the sum of lse, and dsink = - sum exp(sink - lse) delta.
Where lse has a gradient too, delta - dlse stands in the place of delta in ds and dsink. A bias is added to the capped
scores; its gradient is ds without the cap's factor, summed over what it is broadcast to.
The scale stays a Python float (float64) throughout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

BLOCK_ELEMENTS = 2**25
"""Scores held at once: 256 MiB in float64; about five such tensors live at a time (1.3 GiB)."""

ABSORBING = -(2.0**100)
"""A row whose every score is below has had a mask's least number added everywhere, beside which lse has no digits."""


for _function in (torch.exp, torch.log, torch.tanh):
    # MKL looks for a function's code at its first call; threads that make it at once can get one right to 9 digits only
    # (pytorch #188792). A single element is one thread's.
    _function(torch.ones(1, dtype=torch.float64))


@dataclass(frozen=True)
class Reference:
    """out (B, Sq, H, Dv), dq (B, Sq, H, D), dk (B, S, Hk, D), dv (B, S, Hk, Dv), lse, delta (B, H, Sq), float64;
    dsink (1, 1, H), without sinks (1, 1, 0); dbias as the bias, four dimensions, where it is asked for; max_logit as
    lse, a row's largest score as softmax has it, without its sink."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    delta: Tensor
    dsink: Tensor = field(default_factory=lambda: torch.zeros(1, 1, 0, dtype=torch.float64))
    dbias: Tensor = field(default_factory=lambda: torch.zeros(1, 1, 0, 0, dtype=torch.float64))
    max_logit: Tensor = field(default_factory=lambda: torch.zeros(1, 1, 0, dtype=torch.float64))


def attention(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, *, scale: float, causal: bool, top_left: bool = False,
    window: int | None = None, documents: Sequence[int] = (), softcap: float | None = None,
    sinks: Sequence[float] = (), mask: Tensor | None = None, dlse: Tensor | None = None,
    of_bias: Sequence[int] = (1, 1, 0, 0),
) -> Reference:  # fmt: skip
    """The reference for q (B, Sq, H, D), k (B, S, Hk, D), v (B, S, Hk, Dv) and dout (B, Sq, H, Dv) of any dtype.

    See `seen_keys` for the mask. mask: another one beside the first, (1 or B, 1 or H, Sq, S): bool, true where a key is
    seen, or numbers that are added to the scores; a row that it leaves no key has out 0, lse -inf and no gradients.
    dlse: (B, H, Sq), the gradient of lse. of_bias: the shape of a bias whose gradient is asked for, (1 or B, 1 or H,
    1 or Sq, 1 or S). Raises ValueError where a query would see no key, and RuntimeError when TF32 or autocast could
    touch the computation.
    """
    assert_exact_arithmetic(q.device.type)
    batch, length, heads, _ = q.shape
    seen = seen_keys(length, k.shape[1], causal, top_left, window, documents)
    there = seen.to(q.device)  # once: a GPU is waited for
    out, dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float64, device=x.device) for x in (dout, q, k, v))
    lse, delta, most = (q.new_empty(batch, heads, length, dtype=torch.float64) for _ in range(3))
    dsink = torch.zeros(1, 1, len(sinks), dtype=torch.float64, device=q.device)
    dbias = torch.zeros(*of_bias, dtype=torch.float64, device=q.device)
    reference = Reference(out, lse, dq, dk, dv, delta, dsink, dbias, most)
    share = heads // k.shape[2]
    for item in range(batch):
        for head_kv in range(k.shape[2]):
            for head in range(head_kv * share, (head_kv + 1) * share):
                own = None if mask is None else mask[item % mask.shape[0], head % mask.shape[1]]
                through = None if dlse is None else dlse[item, head].double()[:, None]
                given = (q, k, v, dout, scale, seen, there, softcap, sinks, own, through)
                _one_head(reference, item, head, head_kv, *given)
    return reference


def seen_keys(
    length: int, keys: int, causal: bool, top_left: bool, window: int | None, documents: Sequence[int]
) -> Tensor:
    """The keys [begin, end) that each query sees: int64 (Sq, 2). Raises ValueError where there are none.

    Query i stands at key i + S - Sq (at i if top_left), so that the last query stands at the last key. Causal: it sees
    no key behind it. window: none further away. documents: their lengths; it sees those of its own.
    """
    place = torch.arange(length) + (0 if top_left else keys - length)
    begin, end = torch.zeros_like(place), torch.full_like(place, keys)
    if causal:
        end = end.minimum(place + 1)
    if window is not None:
        begin, end = begin.maximum(place - window), end.minimum(place + window + 1)
    if documents:
        borders = torch.tensor([0, *documents]).cumsum(0)
        own = torch.searchsorted(borders, place, right=True)
        begin, end = begin.maximum(borders[own - 1]), end.minimum(borders[own])
    if (begin >= end).any():
        raise ValueError(f"{length} queries on {keys} keys: under this mask some see no key")
    return torch.stack([begin, end], dim=1)


def assert_exact_arithmetic(device: str) -> None:
    """Float64 products know no TF32, but a process that allows it is set up wrongly; autocast would round inputs."""
    if torch.backends.cuda.matmul.allow_tf32:
        raise RuntimeError("TF32 is allowed in this process; the reference refuses to run")
    if torch.is_autocast_enabled(device):
        raise RuntimeError("autocast is enabled in this process; the reference refuses to run")


def _one_head(
    reference: Reference, item: int, head: int, head_kv: int, q: Tensor, k: Tensor, v: Tensor, dout: Tensor,
    scale: float, seen: Tensor, there: Tensor, softcap: float | None, sinks: Sequence[float],
    mask: Tensor | None, dlse: Tensor | None,
) -> None:  # fmt: skip
    """Fill one query head's out, lse, dq, delta; add to its key/value head's dk, dv. there: `seen` on the device."""
    query, gradient = q[item, :, head].double(), dout[item, :, head].double()
    key, value = k[item, :, head_kv].double(), v[item, :, head_kv].double()
    dk, dv = torch.zeros_like(key), torch.zeros_like(value)
    dbias = reference.dbias[item % reference.dbias.shape[0], head % reference.dbias.shape[1]]
    for first, last in _row_blocks(query.shape[0], key.shape[0]):
        any_row, every_row = _common_keys(seen[first:last])
        scores = (query[first:last] @ key[any_row].T).mul_(scale)
        slope_of_cap = None
        if softcap is not None:
            scores.div_(softcap).tanh_()
            slope_of_cap = 1 - scores.square()
            scores.mul_(softcap)
        _hide(scores, there[first:last], any_row.start, every_row)
        if mask is not None:
            _add(scores, mask[first:last, any_row])
        top = scores.amax(dim=1, keepdim=True)
        reference.max_logit[item, head, first:last] = top.squeeze(1)
        if mask is not None:
            absorbing = -torch.inf if sinks else ABSORBING  # a sink is left where a mask absorbs all keys
            absorbed = torch.where(top < absorbing, top, 0.0).nan_to_num_(neginf=0.0)
            scores.sub_(absorbed)
            top.sub_(absorbed).masked_fill_(top.isneginf(), 0.0)
        if sinks:
            top.clamp_(min=sinks[head])
        lse = scores.sub(top).exp_().sum(dim=1, keepdim=True)
        if sinks:
            lse += torch.exp(sinks[head] - top)
        lse = lse.log_().add_(top)
        weights = scores.sub_(lse).exp_()
        if mask is not None:
            weights.masked_fill_(lse.isneginf(), 0.0)
        out = weights @ value[any_row]
        delta = (gradient[first:last] * out).sum(dim=1, keepdim=True)
        slope = gradient[first:last] @ value[any_row].T
        pull = delta if dlse is None else delta - dlse[first:last]
        slope.sub_(pull).mul_(weights)
        if dbias.numel():
            add_to_bias(dbias, slice(first, last), any_row, slope)
        if slope_of_cap is not None:
            slope.mul_(slope_of_cap)
        if sinks:
            reference.dsink[0, 0, head] -= (torch.exp(sinks[head] - lse) * pull).sum()
        reference.out[item, first:last, head] = out
        reference.lse[item, head, first:last] = (lse if mask is None else lse + absorbed).squeeze(1)
        reference.delta[item, head, first:last] = delta.squeeze(1)
        reference.dq[item, first:last, head] = (slope @ key[any_row]).mul_(scale)
        dk[any_row] += (slope.T @ query[first:last]).mul_(scale)
        dv[any_row] += weights.T @ gradient[first:last]
    reference.dk[item, :, head_kv] += dk
    reference.dv[item, :, head_kv] += dv


def _common_keys(seen: Tensor) -> tuple[slice, slice]:
    """The keys from the first that any of the rows sees to the last, and those that every row sees (maybe none)."""
    (first, earliest), (latest, last) = seen.amin(0).tolist(), seen.amax(0).tolist()
    return slice(first, last), slice(latest, max(latest, earliest))


def _hide(scores: Tensor, seen: Tensor, first: int, every_row: slice) -> None:
    """-inf at keys that a row does not see, in place; touches the edges only. scores: (rows, keys from `first`)."""
    for begin, end in ((first, every_row.start), (every_row.stop, first + scores.shape[1])):
        key = torch.arange(begin, end, device=scores.device)
        hidden = (key < seen[:, :1]) | (key >= seen[:, 1:])
        scores[:, begin - first : end - first].masked_fill_(hidden, -torch.inf)


def _add(scores: Tensor, mask: Tensor) -> None:
    """A mask of these rows and keys, in place."""
    if mask.dtype == torch.bool:
        scores.masked_fill_(~mask, -torch.inf)
    else:
        scores.add_(mask)


def add_to_bias(sum_: Tensor, rows: slice, keys: slice, terms: Tensor) -> None:
    """Add what some rows and keys give to a bias, (Sq or 1, S or 1), in place."""
    if sum_.shape[0] == 1:
        rows, terms = slice(0, 1), terms.sum(0, keepdim=True)
    if sum_.shape[1] == 1:
        keys, terms = slice(0, 1), terms.sum(1, keepdim=True)
    sum_[rows, keys] += terms


def _row_blocks(length: int, keys: int) -> Iterator[tuple[int, int]]:
    rows = max(1, min(1024, BLOCK_ELEMENTS // keys))
    return ((first, min(first + rows, length)) for first in range(0, length, rows))
