"""Attention and its gradients in float64, blockwise over query rows, memory linear in the sequence length.

Nothing is imported from the variants, the kernels or the merge: the formulas are written out from the definition,

    s = scale q k^T,  lse = ln sum exp s,  p = exp(s - lse),  out = p v,
    dv = p^T dout,  delta = sum_d dout out,  ds = p (dout v^T - delta),  dq = scale ds k,  dk = scale ds^T q,

with whole rows at a time, so that no online softmax is needed. The scale stays a Python float (float64) throughout.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_ELEMENTS = 2**25
"""Scores held at once: 256 MiB in float64; about five such tensors live at a time (1.3 GiB)."""


@dataclass(frozen=True)
class Truth:
    """out, dq (B, Sq, H, D), dk, dv (B, S, Hk, D), lse (B, H, Sq), delta (B, H, Sq), all float64."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    delta: Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, *, scale: float, causal: bool) -> Truth:
    """The truth for q, dout (B, Sq, H, D) and k, v (B, S, Hk, D) of any dtype.

    Causal: query i sees keys up to i + S - Sq, so that the last query sees the last key. Raises ValueError where a
    query would see none, and RuntimeError when TF32 or autocast could touch the computation.
    """
    assert_exact_arithmetic(q.device.type)
    batch, length, heads, _ = q.shape
    if causal and length > k.shape[1]:
        raise ValueError(f"{length} queries on {k.shape[1]} keys: under a causal mask the first ones see no key")
    truth = Truth(
        out=_empty(q),
        lse=q.new_empty(batch, heads, length, dtype=torch.float64),
        dq=_empty(q),
        dk=_empty(k).zero_(),
        dv=_empty(v).zero_(),
        delta=q.new_empty(batch, heads, length, dtype=torch.float64),
    )
    share = heads // k.shape[2]
    for item in range(batch):
        for head_kv in range(k.shape[2]):
            for head in range(head_kv * share, (head_kv + 1) * share):
                _one_head(truth, item, head, head_kv, q, k, v, dout, scale, causal)
    return truth


def assert_exact_arithmetic(device: str) -> None:
    """Float64 products know no TF32, but a process that allows it is set up wrongly; autocast would round inputs."""
    if torch.backends.cuda.matmul.allow_tf32:
        raise RuntimeError("TF32 is allowed in this process; the reference refuses to run")
    if torch.is_autocast_enabled(device):
        raise RuntimeError("autocast is enabled in this process; the reference refuses to run")


def _empty(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=torch.float64, device=like.device)


def _one_head(
    truth: Truth, item: int, head: int, head_kv: int, q: Tensor, k: Tensor, v: Tensor, dout: Tensor,
    scale: float, causal: bool,
) -> None:  # fmt: skip
    """Fill one query head's out, lse, dq, delta; add to its key/value head's dk, dv."""
    query, gradient = q[item, :, head].double(), dout[item, :, head].double()
    key, value = k[item, :, head_kv].double(), v[item, :, head_kv].double()
    dk, dv = torch.zeros_like(key), torch.zeros_like(value)
    ahead = key.shape[0] - query.shape[0]  # keys before that of the first query
    for first, last in _row_blocks(query.shape[0], key.shape[0]):
        seen = last + ahead if causal else key.shape[0]
        scores = (query[first:last] @ key[:seen].T).mul_(scale)
        if causal:
            future = torch.ones(last - first, last - first, dtype=torch.bool, device=q.device).triu_(1)
            scores[:, first + ahead :].masked_fill_(future, -torch.inf)
        top = scores.amax(dim=1, keepdim=True)
        lse = scores.sub(top).exp_().sum(dim=1, keepdim=True).log_().add_(top)
        weights = scores.sub_(lse).exp_()
        out = weights @ value[:seen]
        delta = (gradient[first:last] * out).sum(dim=1, keepdim=True)
        slope = (gradient[first:last] @ value[:seen].T).sub_(delta).mul_(weights)
        truth.out[item, first:last, head] = out
        truth.lse[item, head, first:last] = lse.squeeze(1)
        truth.delta[item, head, first:last] = delta.squeeze(1)
        truth.dq[item, first:last, head] = (slope @ key[:seen]).mul_(scale)
        dk[:seen] += (slope.T @ query[first:last]).mul_(scale)
        dv[:seen] += weights.T @ gradient[first:last]
    truth.dk[item, :, head_kv] += dk
    truth.dv[item, :, head_kv] += dv


def _row_blocks(length: int, keys: int) -> Iterator[tuple[int, int]]:
    rows = max(1, min(1024, BLOCK_ELEMENTS // keys))
    return ((first, min(first + rows, length)) for first in range(0, length, rows))
