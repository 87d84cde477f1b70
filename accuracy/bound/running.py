"""One pass over a problem with absolute values and squares: how far can each element of out, lse, dq, dk and dv be off?

In: inputs, the float64 reference and a `Policy`. Out: `Bound`s in the tensors' own shapes. In blocks of rows, as the
reference: memory linear in the sequence length. The derivation, its assumptions and its sources are in README.md.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from accuracy.bound.backward import Sums, backward, finished
from accuracy.bound.forward import Rows, forward, largest, scores
from accuracy.bound.policy import Policy, half_spacing, underflow, unit
from accuracy.core.dtype import REFERENCE_ERROR
from accuracy.core.errors import ConfigError
from accuracy.reference.float64 import Reference, add_to_bias, seen_keys

BLOCK_ELEMENTS, BLOCK_ROWS = 2**21, 256
"""Scores held at once, and their rows, on a CPU; about 25 such float64 matrices live at a time (400 MiB)."""
ON_A_GPU = 3 * 2**21
"""Scores held at once on a GPU, in any number of rows: it would wait for the launches of smaller blocks."""
HIDDEN = -1e30
"""What a mask adds to the score of a key that nobody is to see; the least number of bfloat16 is -3e38."""
OWN_ERROR = 1 + 1e-9
"""Factor for the errors of the pass itself: a few thousand float64 operations of one sign."""
SHARED = 4.0
"""Times the variance of dsink, twice its error: rows share what a kernel rounds alike."""


@dataclass(frozen=True)
class Bound:
    """Of one tensor. certain: no error is larger; deviation: the standard deviation of the error, whose variance is the
    sum of those of all roundings, float32 to save memory, and rounded up."""

    certain: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, certain: Tensor, variance: Tensor) -> "Bound":
        """Return the bound of an error with this variance."""
        return cls(certain, _deviation(variance))

    @property
    def variance(self) -> Tensor:
        """Return the variance of each element's error, float64."""
        return self.deviation.double().square_()

    def likely(self, p: float) -> Tensor:
        """An error is larger with a chance of at most p, if roundings are independent; never above `certain`.

        Raises ConfigError, a ValueError, where p is not between 0 and 1.
        """
        if not isinstance(p, (int, float)) or not 0 < p < 1:
            raise ConfigError(f"p={p!r}; allowed: a chance between 0 and 1")
        return self.deviation.double().mul_(math.sqrt(2 * math.log(2 / p))).minimum(self.certain)


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
    names = ["out", "lse", "dq", "dk", "dv", *(["max_logit"] if of_max_logit else [])]
    zeros = {name: torch.zeros_like(getattr(reference, name)) for name in names}
    found = {name: Bound(like, like.float()) for name, like in zeros.items()}
    of_bias_sums = Sums.like(reference.dbias) if reference.dbias.numel() else None
    terms_of_key = _rows_of_key(seen, k.shape[1]).to(q.device)
    for item, kv in itertools.product(range(q.shape[0]), range(k.shape[2])):
        place = item, slice(None), kv
        sums = {name: Sums.like(getattr(reference, name)[place]) for name in ("dk", "dv")}
        for head in range(kv * share, (kv + 1) * share):
            for rows, keys, visible in _blocks(seen, q.device):
                lse = reference.lse[item, head, rows, None].nan_to_num(neginf=0.0)
                shown = _masked(mask, (item, head, rows), keys, visible, lse, bool(sinks))
                part = Rows(
                    q=q[item, rows, head].double(), k=k[item, keys, kv].double(), v=v[item, keys, kv].double(),
                    dout=dout[item, rows, head].double(), out=reference.out[item, rows, head],
                    delta=reference.delta[item, head, rows, None], dq=reference.dq[item, rows, head], scale=scale,
                    softcap=softcap, sink=sinks[head] if sinks else None, of_bias=of_bias_sums is not None,
                    dlse=None if dlse is None else dlse[item, head, rows, None].double(), **shown,
                )  # fmt: skip
                scored = scores(part, policy)
                done = forward(part, scored, policy)
                dq, dk, dv, dbias = backward(part, scored, done, policy)
                here = item, rows, head
                _fill(found["out"], here, done.out, done.out_variance)
                _fill(found["lse"], (item, head, rows), done.lse[:, 0], done.lse_variance[:, 0])
                if "max_logit" in found:
                    _fill(found["max_logit"], (item, head, rows), *largest(part, scored))
                _fill(found["dq"], here, *finished(dq, part.dq, scored.terms, 1, policy))
                sums["dk"].add(keys, dk)
                sums["dv"].add(keys, dv)
                if dbias is not None and of_bias_sums is not None:
                    own = item % of_bias[0], head % of_bias[1]
                    for mine, terms in zip(vars(of_bias_sums).values(), vars(dbias).values(), strict=True):
                        add_to_bias(mine[own], rows, keys, terms)
        for name, terms in sums.items():
            exact = getattr(reference, name)[place]
            _fill(found[name], place, *finished(terms, exact, terms_of_key, share, policy))
    if of_bias_sums is not None:
        every = reference.lse.numel() * k.shape[1]
        count = torch.full_like(reference.dbias[:1, :1, :1, :1], every / reference.dbias.numel())
        if of_bias[2] > 1:  # no rows are summed
            of_bias_sums.together.zero_()
        stored = replace(policy, dtype=stored_dbias)
        found["dbias"] = Bound.of(*finished(of_bias_sums, reference.dbias, count, 1, stored))
    for name, bound in found.items():  # the reference and this pass are computed in float64: what they err by is added
        exact = getattr(reference, name)
        root = exact.norm() / math.sqrt(exact.numel())
        bound.certain.mul_(OWN_ERROR).add_(exact.abs().add_(root).mul_(REFERENCE_ERROR)).nan_to_num_(nan=torch.inf)
    return found


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
    bound.deviation[place] = _deviation(variance)


def _deviation(variance: Tensor) -> Tensor:
    """Return the root of a variance and of the errors of this pass, in float32, no smaller; infinite of NaN, which no
    weight times an infinite error is."""
    root = (variance * OWN_ERROR).nan_to_num_(nan=torch.inf, posinf=torch.inf).sqrt_().float()
    return root.nextafter(torch.full_like(root, torch.inf))


def _rows_of_key(seen: Tensor, keys: int) -> Tensor:
    """Return for each key how many queries see it: float64 (S, 1)."""
    begins, ends = (torch.bincount(seen[:, side], minlength=keys + 1) for side in (0, 1))
    return (begins - ends).cumsum(0)[:keys, None].double()


def _blocks(seen: Tensor, device: torch.device) -> Iterator[tuple[slice, slice, Tensor]]:
    """Rows, the keys from the first that one of them sees to the last, and which each sees: (R, C), 1 or 0."""
    here = seen.to(device)  # once: where each block asks the GPU for its borders, no launch runs ahead
    elements, most_rows = (ON_A_GPU, len(seen)) if device.type == "cuda" else (BLOCK_ELEMENTS, BLOCK_ROWS)
    first = 0
    while first < len(seen):
        begins, ends = seen[first : first + most_rows, 0].cummin(0)[0], seen[first : first + most_rows, 1].cummax(0)[0]
        held = (ends - begins) * torch.arange(1, len(ends) + 1)
        rows = max(1, int((held <= elements).sum()))
        begin, end = int(begins[rows - 1]), int(ends[rows - 1])
        mine = here[first : first + rows]
        key = torch.arange(begin, end, device=device)
        visible = ((key >= mine[:, :1]) & (key < mine[:, 1:])).double()
        yield slice(first, first + rows), slice(begin, end), visible
        first += rows


def of_sinks(
    reference: Reference, bounds: dict[str, Bound], sinks: Tensor, dout: Tensor, policy: Policy, stored: str,
    dlse: Tensor | None = None,
) -> Bound:  # fmt: skip
    """The bound of dsink = - sum over rows of exp(sink - lse) delta, (1, 1, H).

    A row's term is off by the relative error of its weight, that of lse and of an exp, or where it is subnormal by half
    of the least number, as the term itself is, and by the error of its delta = sum_d dout out, that of out and of the
    products. Terms are summed like the others.

    Args:
        bounds: those of out and lse.
        sinks: (H,), float64.
        dout: (B, Sq, H, D).
        stored: the dtype of dsink.
        dlse: (B, H, Sq), the gradient of lse, which goes to the sink by the same weight.
    """
    partial = max(unit(policy.partial), unit(stored))  # autograd adds parts in the dtype of the leaf
    u, short, products = policy.u, unit(policy.weights), unit(policy.products)
    logits = sinks[None, :, None]
    weights = torch.exp(logits - reference.lse)
    size, square = dout.double().abs(), dout.double().square()
    of_delta = (size * (bounds["out"].certain + 2 * products * reference.out.abs())).sum(-1).transpose(1, 2)
    varies = (square * (bounds["out"].variance + products**2 * reference.out.square())).sum(-1).transpose(1, 2)
    exponent = u * (policy.exponential + 12 * (logits.abs() + reference.lse.abs()))
    relative = torch.expm1(bounds["lse"].certain + exponent) + 2 * short
    pull = reference.delta.abs() + (0.0 if dlse is None else dlse.double().abs())
    terms, least = weights * pull, underflow(policy.weights)
    count = terms.shape[0] * terms.shape[2]
    added = count * u + policy.pieces * partial
    certain = (terms.abs() * (relative + added) + weights * (1 + relative) * of_delta + least * (2 + pull)).sum((0, 2))
    scattered = terms.square() * (bounds["lse"].variance + exponent.square() / 3 + short**2)
    scattered += least**2 * (2 + pull.square())
    variance = SHARED * (scattered + weights.square() * varies).sum((0, 2))
    exact = reference.dsink[0, 0]
    variance += SHARED * policy.pieces * partial**2 * (exact.square() + terms.square().sum((0, 2)))
    last = half_spacing(exact.abs() + certain, stored)
    certain = certain + last + REFERENCE_ERROR * terms.abs().sum((0, 2))
    return Bound.of(certain[None, None], (variance + last.square())[None, None])
