"""How far can rounding carry the gradient of a sink, dsink = - sum over rows of exp(sink - lse) delta?

In: the reference, the bounds of out and lse, and the `Policy`. A row's term is off by the relative error of its weight,
that of lse and of an exp, or where it is subnormal by half of the least number, as the term itself is, and by the error
of its delta = sum_d dout out, that of out and of the products. Terms are summed like the others. Rows share what a
kernel rounds alike, so the variance is taken four times: twice the error.
"""

import torch
from torch import Tensor

from accuracy.bound.policy import Policy, half_spacing, underflow, unit
from accuracy.bound.running import Bound
from accuracy.core.dtype import REFERENCE_ERROR
from accuracy.reference.float64 import Reference

SHARED = 4.0


def of_sinks(
    reference: Reference, bounds: dict[str, Bound], sinks: Tensor, dout: Tensor, policy: Policy, stored: str,
    dlse: Tensor | None = None,
) -> Bound:  # fmt: skip
    """The bound of dsink, (1, 1, H). sinks: (H,), float64; dout: (B, Sq, H, D); stored: the dtype of dsink; dlse: (B,
    H, Sq), the gradient of lse, which goes to the sink by the same weight."""
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
    added = policy.chain(count) * u + policy.pieces * partial
    certain = (terms.abs() * (relative + added) + weights * (1 + relative) * of_delta + least * (2 + pull)).sum((0, 2))
    scattered = terms.square() * (bounds["lse"].variance + exponent.square() / 3 + short**2)
    scattered += least**2 * (2 + pull.square())
    variance = SHARED * (scattered + weights.square() * varies).sum((0, 2))
    exact = reference.dsink[0, 0]
    variance += SHARED * policy.pieces * partial**2 * (exact.square() + terms.square().sum((0, 2)))
    last = half_spacing(exact.abs() + certain, stored)
    certain = certain + last + REFERENCE_ERROR * terms.abs().sum((0, 2))
    return Bound.of(certain[None, None], (variance + last.square())[None, None])
