"""One pass over a problem with absolute values and squares: how far can each element of out, lse, dq, dk and dv be off?

In: inputs, the float64 reference and a `Policy`. Out: `Bound`s in the tensors' own shapes. In blocks of rows, as the
reference: memory linear in the sequence length. The derivation, its assumptions and its sources are in README.md.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from accuracy.bound.backward import Sums, backward, finished
from accuracy.bound.forward import Rows, forward, largest, scores
from accuracy.bound.policy import Policy
from accuracy.bound.shifted import shifted
from accuracy.core.dtype import REFERENCE_ERROR
from accuracy.core.errors import ConfigError
from accuracy.reference.float64 import Reference, add_to_bias, seen_keys

BLOCK_ELEMENTS = 2**21
"""Scores held at once; about 25 such float64 matrices live at a time (400 MiB)."""
HIDDEN = -1e30
"""What a mask adds to the score of a key that nobody is to see; the least number of bfloat16 is -3e38."""
SMALLEST = 2.0**-1022
"""Added to every variance: float64 holds no square of a smaller error."""
OWN_ERROR = 1 + 1e-9
"""Factor for the errors of the pass itself: a few thousand float64 operations of one sign."""


@dataclass(frozen=True)
class Bound:
    """Of one tensor. certain: no error is larger; variance: of the error, a sum of that of all roundings; shift: size
    of the error's mean, where sums are cut off instead of rounded."""

    certain: Tensor
    variance: Tensor
    shift: Tensor | float = 0.0

    def likely(self, p: float) -> Tensor:
        """An error is larger with a chance of at most p, if roundings are independent; never above `certain`.

        Raises ConfigError, a ValueError, where p is not between 0 and 1.
        """
        if not isinstance(p, (int, float)) or not 0 < p < 1:
            raise ConfigError(f"p={p!r}; allowed: a chance between 0 and 1")
        return (math.sqrt(2 * math.log(2 / p)) * self.variance.sqrt() + self.shift).minimum(self.certain)


def bounds(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, reference: Reference, policy: Policy, *, scale: float,
    causal: bool, top_left: bool = False, window: int | None = None, documents: Sequence[int] = (),
    softcap: float | None = None, sinks: Sequence[float] = (), mask: Tensor | None = None,
    dlse: Tensor | None = None, of_bias: Sequence[int] = (1, 1, 0, 0),
    stored_dbias: str = "", of_max_logit: bool = False,
) -> dict[str, Bound]:  # fmt: skip
    """The bounds of out, dq (B, Sq, H, D), lse, max_logit (B, H, Sq), dk, dv (B, S, Hk, D), dbias, float64. Arguments
    as those of `accuracy.reference.float64.attention`, whose result `reference` is; stored_dbias: the dtype of dbias;
    of_max_logit: whether max_logit is asked for."""
    seen = seen_keys(q.shape[1], k.shape[1], causal, top_left, window, documents)
    share = q.shape[2] // k.shape[2]
    rowwise = ("out", "lse", "dq", "max_logit")[: 3 + of_max_logit]
    zeros = {name: torch.zeros_like(getattr(reference, name)) for name in rowwise}
    found = {name: Bound(like.clone(), like) for name, like in zeros.items()}
    summed = ("dk", "dv", "dbias") if reference.dbias.numel() else ("dk", "dv")
    sums = {name: Sums(*(torch.zeros_like(getattr(reference, name)) for _ in range(5))) for name in summed}
    shifts = {name: torch.zeros_like(getattr(reference, name)) for name in found | sums} if policy.shifts else {}
    terms_of_key = torch.zeros(k.shape[1], 1, dtype=torch.float64, device=q.device)
    for item in range(q.shape[0]):
        for head in range(q.shape[2]):
            kv = head // share
            ties = _ties(dout[item, :, head], v[item, :, kv], policy)
            for rows, keys, visible in _blocks(seen, q.device):
                lse = reference.lse[item, head, rows, None].nan_to_num(neginf=0.0)
                shown = _masked(mask, (item, head, rows), keys, visible, lse, bool(sinks))
                part = Rows(
                    q=q[item, rows, head].double(), k=k[item, keys, kv].double(), v=v[item, keys, kv].double(),
                    dout=dout[item, rows, head].double(), out=reference.out[item, rows, head],
                    delta=reference.delta[item, head, rows, None], dq=reference.dq[item, rows, head], scale=scale,
                    softcap=softcap, sink=sinks[head] if sinks else None, ties=ties, of_bias="dbias" in sums,
                    dlse=None if dlse is None else dlse[item, head, rows, None].double(), **shown,
                )  # fmt: skip
                scored = scores(part, policy)
                done = forward(part, scored, policy)
                dq, dk, dv, dbias = backward(part, scored, done, policy)
                here, there = (item, rows, head), (item, keys, kv)
                if shifts:
                    mean = shifted(part, scored, policy)
                    shifts["out"][here], shifts["dq"][here] = mean.out, mean.dq
                    shifts["lse"][item, head, rows] = mean.lse[:, 0]
                    shifts["dk"][there] += mean.dk
                    shifts["dv"][there] += mean.dv
                _fill(found["out"], here, done.out, done.out_variance)
                _fill(found["lse"], (item, head, rows), done.lse[:, 0], done.lse_variance[:, 0])
                if "max_logit" in found:
                    _fill(found["max_logit"], (item, head, rows), *largest(part, scored))
                _fill(found["dq"], here, *finished(dq, part.dq, scored.terms, 1, policy))
                sums["dk"].add(there, dk)
                sums["dv"].add(there, dv)
                if dbias is not None:
                    own = item % of_bias[0], head % of_bias[1]
                    for mine, terms in zip(vars(sums["dbias"]).values(), vars(dbias).values(), strict=True):
                        add_to_bias(mine[own], rows, keys, terms)
                if item == head == 0:
                    terms_of_key[keys] += visible.sum(0)[:, None]
    terms = terms_of_key[None, :, None]
    for name in ("dk", "dv"):
        found[name] = Bound(*finished(sums[name], getattr(reference, name), terms, share, policy))
        if shifts:
            shifts[name] += policy.lost(getattr(reference, name), sums[name].size, terms * share)
    if "dbias" in sums:
        every = reference.lse.numel() * k.shape[1]
        terms = torch.full_like(reference.dbias[:1, :1, :1, :1], every / reference.dbias.numel())
        if of_bias[2] > 1:  # no rows are summed
            sums["dbias"].together.zero_()
        stored = replace(policy, dtype=stored_dbias)
        found["dbias"] = Bound(*finished(sums["dbias"], reference.dbias, terms, 1, stored))
    for name, bound in found.items():  # the reference and this pass are computed in float64: what they err by is added
        exact = getattr(reference, name)
        size = REFERENCE_ERROR * (exact.abs() + exact.square().mean().sqrt())
        certain = (bound.certain * OWN_ERROR + size).nan_to_num_(nan=torch.inf)
        shift = shifts[name].abs() if shifts else 0.0
        found[name] = Bound(certain, bound.variance * OWN_ERROR + SMALLEST, shift)
    return found


def _ties(dout: Tensor, v: Tensor, policy: Policy) -> tuple[bool, bool]:
    """Whether a row of dout, and a key's value, occurs again: all of them may, where a policy is not to know."""
    if policy.reads == "anything":
        return True, True
    rows, values = (len(x.unique(dim=0)) < len(x) for x in (dout, v))
    return rows, values


def _masked(
    mask: Tensor | None, place: tuple[int, int, slice], keys: slice, visible: Tensor, lse: Tensor, sink: bool
) -> dict[str, Any]:
    """visible (R, C) and lse (R, 1) under a mask too, and what it adds: those fields of `Rows`."""
    none = {"visible": visible, "bias": None, "lost": None, "lse": lse}
    if mask is None:
        return none
    item, head, rows = place
    mine = mask[item % mask.shape[0], head % mask.shape[1], rows, keys].to(visible.device)
    if mine.dtype == torch.bool:
        return none | {"visible": visible * mine}
    mine = mine.double()
    lost = (mine.amax(1, keepdim=True) <= HIDDEN) & (not sink)  # with a sink there is still that
    hidden = (mine <= HIDDEN) & ~lost
    alike = visible.sum(1, keepdim=True).log()
    return {
        "visible": visible * ~hidden, "bias": mine.masked_fill(hidden | lost, 0.0), "lost": lost,
        "lse": torch.where(lost, alike, lse),
    }  # fmt: skip


def _fill(bound: Bound, place: tuple[int | slice, ...], certain: Tensor, variance: Tensor) -> None:
    bound.certain[place] = certain
    bound.variance[place] = variance


def _blocks(seen: Tensor, device: torch.device) -> Iterator[tuple[slice, slice, Tensor]]:
    """Rows, the keys from the first that one of them sees to the last, and which each sees: (R, C), 1 or 0."""
    most = int((seen[:, 1] - seen[:, 0]).max())
    rows = max(1, min(256, BLOCK_ELEMENTS // most))
    for first in range(0, len(seen), rows):
        mine = seen[first : first + rows].to(device)
        begin, end = int(mine[:, 0].min()), int(mine[:, 1].max())
        key = torch.arange(begin, end, device=device)
        visible = ((key >= mine[:, :1]) & (key < mine[:, 1:])).double()
        yield slice(first, first + len(mine)), slice(begin, end), visible
