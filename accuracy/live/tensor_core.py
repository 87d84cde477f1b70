"""Which products of a float32 function are computed more coarsely, as tensor cores do it? That is a fact, no fault.

A coarser product first rounds its operands to 11 bits, to nearest or by cutting the rest off (TF32), or it splits each
operand into two numbers in bfloat16 and leaves out the product of the two small ones. Any product of a call may do so
while the others are in float32. Attention in float64 with q, k, v or dout rounded shows what one such product changes
in each result: its part. The bits of P and dS depend on the order of operations, so what rounding them changes is not
known.

To first order, a result's error is the sum of the parts of its coarser products and of what is not known. A fit by
least squares gives each part a coefficient: about 1 if the product is coarser, about 0 if it is in float32; above one
half it counts as coarser. dq and dk are made of the same scores and the same dP, so these have one coefficient in both,
and a fault in one of them alone does not look like a coarser product. Cutting off shrinks a result by a factor, as a
fault may, so error and parts are compared without what lies along the reference; lse is compared as it is. The part is
the whole error of q k^T and of dout v^T. Beside P or dS it is one of two roundings of the same size in TF32, and one of
three errors where operands are split.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from accuracy.bound.policy import OF_FLOAT32
from accuracy.live.uncounted import scaled
from accuracy.reference.float64 import Reference

COARSE = 0.5
"""Least coefficient of a coarser product's part."""
MOST = 2.0
"""By which an error may exceed its parts: it is 1.73 times as large where one of three roundings is known."""
MOST_FACTOR = 2.0**-9
"""Largest factor by which TF32 shrinks out: where P and v are cut off, each loses less than 2^-10 of itself."""
FAR = 16.0
"""Times its parts in the coarsest format, more than an error is whose known parts cancel half."""
SAME = 1e-6
"""A part that differs by less than this, relative to it, from the direction of others adds nothing to the fit."""
SCORES, VALUES, LAST = range(3)
"""Products: q k^T; those with v or dout: P v of out, dout v^T of dq and dk, P^T dout of dv; dS k and dS^T q."""
FITTED = ("out", "lse", "dq", "dk", "dv")
_CUT = 13  # of float32's 23 bits of a significand


class Fit(NamedTuple):
    """Of one result. needed: the products that are coarser; added: what these make of it; rest: of its error, relative
    to it, what they do not explain."""

    needed: list[int]
    added: Tensor
    rest: float


def rounded(x: Tensor, to: str) -> Tensor:
    """Return float32 numbers as products in `to`, one of `accuracy.bound.policy.OF_FLOAT32`, have them as operands."""
    if to == "split_16":
        large = x.detach().bfloat16().float()
        return large + (x.detach() - large).bfloat16().float()
    bits = x.detach().contiguous().view(torch.int32)
    up = (1 << _CUT - 1) - 1 + ((bits >> _CUT) & 1) if to == "tf32" else 0
    return ((bits + up) & -(1 << _CUT)).view(torch.float32)


def coarser(
    found: Mapping[str, Tensor], tensors: Sequence[Tensor], exact: Reference, scale: float,
    attend: Callable[..., Reference], wrong: Collection[str], own: Callable[[Reference], Reference] = lambda x: x,
) -> tuple[str, dict[str, Fit]] | None:  # fmt: skip
    """Return one of `OF_FLOAT32` and which products of a float32 function are in that, by result, where a result bears
    the mark; else None.

    found: results of `tensors`, q, k, v, dout; exact: their reference; attend: that of other tensors, by the same
    scale, and with more dlse; wrong: results that float32 does not explain: out and lse decide, where one of these is
    wrong; own: the part of a reference that is in the shapes of `found`.
    """
    whole, exact = exact, own(exact)
    errors = {name: (found[name].double() - getattr(exact, name)).nan_to_num(nan=0.0)
              for name in FITTED if name in found}  # fmt: skip
    if not all(error.isfinite().all() for error in errors.values()):
        return None
    deciding = {"out", "lse"} & {*wrong} & {*errors} or {*errors}
    reach = {"out", "lse", "dv"} & {*wrong} & {*errors}  # parts of dq and dk may cancel
    marked: list[tuple[str, dict[str, Fit]]] = []
    for number, (to, parts) in enumerate(_every_parts(tensors, whole, exact, scale, attend, own)):
        far = (float(errors[name].norm()) > FAR * sum(float(x.norm()) for x in parts[name]) for name in reach)
        if number == 0 and any(far):  # of the coarsest format, whose parts are the largest
            return None
        fits = _fit(errors, parts, exact)
        if any(fits[name].needed for name in deciding):
            marked.append((to, fits))
    return min(marked, key=lambda each: sum(each[1][name].rest for name in deciding), default=None)


def _every_parts(
    tensors: Sequence[Tensor], whole: Reference, exact: Reference, scale: float, attend: Callable[..., Reference],
    own: Callable[[Reference], Reference],
) -> Iterator[tuple[str, dict[str, list[Tensor]]]]:  # fmt: skip
    """Yield a format, the coarsest first, and the parts that products in it make, for each way to scale q and k and
    to have delta."""
    q, k, v, dout = tensors
    for to in OF_FLOAT32:
        both = partial(_both, to=to)
        values = [own(each) for each in _with_values(both, tensors, whole, attend)]
        for query, key in itertools.chain([(both(q), both(k))], scaled(q, k, scale, both)):
            wide_q = torch.cat([query, torch.zeros_like(q), q], -1)
            wide_k = torch.cat([_less(key, k), k, torch.zeros_like(k)], -1)
            scores = own(attend(wide_q, wide_k, v, dout))
            yield from ((to, _parts(exact, scores, each, q.shape[-1], query.shape[-1])) for each in values)


def _both(x: Tensor, to: str) -> Tensor:
    """Return an operand as `rounded` does; where it is split, beside its small part."""
    own = rounded(x, to)
    return torch.cat([own, (x - x.bfloat16().float()).bfloat16().float()], -1) if to == "split_16" else own


def _with_values(
    both: Callable[[Tensor], Tensor], tensors: Sequence[Tensor], exact: Reference, attend: Callable[..., Reference]
) -> Iterator[Reference]:
    """Yield references of v and dout that are rounded, as a backward may have these: with the delta of that dP; with
    that of the exact out; so, and with a dout that is divided by the sum of exp(s - max s) first, as autograd has it
    where P v is divided. dP gets dlse - delta: so delta is set."""
    q, k, v, dout = tensors
    value, share = _less(both(v), v), (exact.max_logit - exact.lse).nan_to_num(nan=0.0).exp()
    done = attend(q, k, value, both(dout))
    yield done
    share = share.transpose(1, 2)[..., None]
    for gradient in (both(dout), both((dout * share).float()).double() / share):
        off = (gradient * done.out).sum(-1).transpose(1, 2) - exact.delta
        yield attend(q, k, value, gradient, off)


def _less(x: Tensor, like: Tensor) -> Tensor:
    """Return one operand of a product, whose sum with the other leaves out the product of both small parts."""
    width = like.shape[-1]
    return torch.cat([x[..., :width], -x[..., width:]], -1)


def _parts(exact: Reference, scores: Reference, values: Reference, dim: int, wide: int) -> dict[str, list[Tensor]]:
    """Return by tensor what coarser products make of it, of `SCORES`, `VALUES` and `LAST`.

    scores: of q that is rounded, 0 and q beside k that is rounded, k and 0, so that scores have the first alone, and dq
    and dk first with operands that are rounded, then with exact ones; wide: dims of a rounded operand.
    """
    width, ends = exact.dv.shape[-1], {"dq": slice(wide, wide + dim), "dk": slice(wide + dim, None)}
    parts = {"lse": [scores.lse - exact.lse]}
    for name in ("out", "dv"):
        reference = getattr(exact, name)
        parts[name] = [getattr(scores, name) - reference, getattr(values, name)[..., :width] - reference]
    for name, own in ends.items():
        x = getattr(scores, name)
        of_scores, reference = x[..., own], getattr(exact, name)
        parts[name] = [of_scores - reference, getattr(values, name) - reference, x[..., :dim] - of_scores]
    return parts


def _fit(
    errors: dict[str, Tensor], parts: dict[str, list[Tensor]], exact: Reference
) -> dict[str, Fit]:  # fmt: skip
    """Return by result which parts its error has, as it bears their mark.

    The scores of the gradients have one coefficient, and so has the dP of dq and dk. Each result counts by its size, so
    that none outweighs others.
    """
    products = [("out", SCORES), ("out", VALUES), ("lse", SCORES), ("backward", SCORES), ("backward", VALUES),
                ("dv", VALUES), ("dq", LAST), ("dk", LAST)]  # fmt: skip
    square, right = (torch.zeros(len(products), width, dtype=torch.float64) for width in (len(products), 1))
    rests = {}
    for name, error in errors.items():
        rest, factor = _beside(torch.stack([error, *parts[name]]), getattr(exact, name), name)
        side = name if name in ("out", "lse") else "backward"
        own = [at for at, (where, kind) in enumerate(products) if where in (name, side) and kind < len(parts[name])
               and not (name == "dv" and (where, kind) == ("backward", VALUES))]  # fmt: skip
        rests[name] = rest, factor, own
        gram = (rest @ rest.T).cpu() / max(float(rest.square().sum()), 1e-300)
        for row, at in enumerate(own, 1):
            right[at] += gram[row, 0]
            square[at, own] += gram[row, 1:]
    sizes = square.diagonal().sqrt().clamp(min=1e-150)
    inverse = torch.linalg.pinv(square / sizes / sizes[:, None], hermitian=True, atol=SAME**2)
    coefficients = inverse @ (right[:, 0] / sizes) / sizes
    fits: dict[str, Fit] = {}
    for name, (rest, factor, own) in rests.items():
        needed = [at for at, place in enumerate(own) if coefficients[place] > COARSE]
        known, size = rest[1:][needed].sum(0), float(rest[0].norm())
        within = size <= MOST * float(known.norm()) and abs(factor) <= MOST_FACTOR
        added = sum((parts[name][at] for at in needed), torch.zeros_like(errors[name]))
        fits[name] = Fit(needed if within else [], added, float((rest[0] - known).norm()) / max(size, 1e-300))
    return fits


def _beside(every: Tensor, reference: Tensor, name: str) -> tuple[Tensor, float]:
    """Return an error and its parts without what is along the reference, flat, and the factor that the error has."""
    every, along = every.nan_to_num(nan=0.0).flatten(1), reference.nan_to_num(neginf=0.0).flatten()
    square = 0.0 if name == "lse" else float(along.square().sum())
    if square <= float(every[0].square().sum()):  # what cancels has no factor
        return every, 0.0
    factors = every @ along / square
    return every - factors[:, None] * along, float(factors[0])
