"""Does out bear the mark of coarser products of float32, as tensor cores do them? That is a fact, no fault.

Operands of such a product are rounded to 11 bits, to the nearest or cut off, before it is computed (TF32), or split
into two numbers in bfloat16, of whose four products the smallest is left out. What that makes of q, k, v and dout can
be computed: attention of these, rounded, in float64. Of the other operands, P and dS, the order of operations decides.
So of out's error the part from q, k and v is known: of three roundings of four (q and k in the scores, v beside P) it
is 0.85 in the mean, as the square root of 3 / 4 has it, and for errors of another kind the correlation is 0 to within 1
/ sqrt(elements), and negative where the other way of rounding is right. Cutting shrinks out by a factor, and scores by
another, and so may a fault: both errors are compared without their part along the reference and along what another
scale of the scores makes of it. What is left has the same correlation, as q, k, v and P are cut by amounts as
independent as those of rounding are. A product that is left out is as large as the rounding of one small part: of three
errors two are known in the scores, one beside P.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from accuracy.bound.policy import OF_FLOAT32
from accuracy.live.uncounted import scaled
from accuracy.reference.float64 import Reference

Operands = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""q, k, v and dout."""
OPERANDS = {"out": ("qkvo", "qk", "v"), "dv": ("o",)}
"""Of q, k, v and dout, those that are rounded where all products are coarser, or the scores', P v's, the backward's; by
the tensor that shows it."""
ALIKE = 0.5
"""Least correlation of out's error with the one that rounding q, k and v makes."""
MOST = 2.0
"""By which the error may exceed that one: it is 1.15 times as large where three of four roundings are known, 1.73 where
one of three is."""
LEAST = 0.25
"""Of that one, what the error is at least: 0.58 of it where v alone is rounded. One of float32's size bears no mark."""
MOST_FACTOR = 2.0**-9
"""Largest factor by which TF32 shrinks out: where P and v are cut off, each loses less than 2^-10 of itself."""
STEEPER = 1 + 2.0**-10
"""Times q: what TF32 may do to scores, of which out's change is linear to within as much."""
FEWEST = 16.0
"""Rows that share an error, at least: of fewer one that has another reason may be along it by chance."""
FAR = 16.0
"""Times the error of rounding operands, more than cutting any of them off makes."""
_CUT = 13  # of float32's 23 bits of a significand


def rounded(x: Tensor, to: str) -> Tensor:
    """Return float32 numbers as products in `to`, one of `accuracy.bound.policy.OF_FLOAT32`, have them as operands."""
    if to == "split_16":
        large = x.detach().bfloat16().float()
        return large + (x.detach() - large).bfloat16().float()
    bits = x.detach().contiguous().view(torch.int32)
    up = (1 << _CUT - 1) - 1 + ((bits >> _CUT) & 1) if to == "tf32" else 0
    return ((bits + up) & -(1 << _CUT)).view(torch.float32)


def bears(error: Tensor, inside: Tensor, reference: Tensor, steeper: Tensor) -> bool:
    """Whether an error of out is that of attention of rounded operands. inside: out of those; reference: of those that
    were given; steeper: of q that is `STEEPER` times as large; all float64, of one shape."""
    (factor, own), (_, part), (_, slope) = (
        _beside(x, reference) for x in (error, inside - reference, steeper - reference)
    )
    own, part = (_beside(x, slope)[1] for x in (own, part))
    size = float(part.norm())
    within = LEAST * size <= float(own.norm()) <= MOST * size and abs(factor) <= MOST_FACTOR
    return within and float((own * part).sum()) > ALIKE * float(own.norm()) * size > 0


def marks(
    name: str, x: Tensor, given: Operands, reference: Reference, scale: float,
    inside: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
) -> Iterator[tuple[str, str, Operands]]:  # fmt: skip
    """Yield the ways in which x bears the mark of coarser products: which of q, k, v, dout are rounded, to which of
    `OF_FLOAT32`, and these operands.

    name: out or dv, x, which is float32; given: what x was computed of; reference: of that, all rows; inside: float64
    attention's tensor of that name.
    """
    right = getattr(reference, name)
    error = x.double() - right
    factor = float((error * right).sum()) / float(right.square().sum().clamp(min=1e-300))
    if not abs(factor) <= MOST_FACTOR:  # nor is NaN
        return
    steeper = None
    for number, (letters, to) in enumerate(itertools.product(OPERANDS[name], OF_FLOAT32)):
        for way, own in enumerate(with_rounded(letters, given, partial(rounded, to=to), reference, scale)):
            changed = inside(*own)
            part = changed - right
            if (way or letters != "qkvo") and rows_of(part) < FEWEST:
                continue  # of so many ideas one fits few rows
            if not number and error.norm() > FAR * part.norm():
                return
            steeper = inside(given[0].double() * STEEPER, *given[1:]) if steeper is None else steeper
            if bears(error, changed, right, steeper):
                yield letters, to, own


def with_rounded(
    letters: str, given: Operands, to: Callable[[Tensor], Tensor], reference: Reference, scale: float
) -> Iterator[Operands]:
    """Yield q, k, v and dout, of which those of `letters` are rounded: q and k also times the scale; dout, where it
    alone is, also divided by its row's sum of exp(s - max s), as autograd has it where P v is divided by that."""
    q, k, v, dout = given
    pairs = [(q, k)]
    if "q" in letters:
        pairs = [(to(q), to(k)), *scaled(q, k, scale, to)]
    douts = [dout if "o" not in letters or dout is None else to(dout)]
    if letters == "o" and dout is not None and reference.max_logit.shape[2] == dout.shape[1]:  # not one rank's rows
        share = (reference.max_logit - reference.lse).exp().transpose(1, 2)[..., None]
        douts.append(to((dout * share).float()).double() / share)
    for (query, key), gradient in itertools.product(pairs, douts):
        yield query, key, to(v) if "v" in letters else v, gradient


def rows_of(part: Tensor) -> float:
    """Return in how many rows an error is, as if all had as much of it: (sum r^2)^2 / sum r^4 of their norms r."""
    squares = part.square().sum(-1)
    return float(squares.sum().square() / squares.square().sum().clamp(min=1e-300))


def _beside(x: Tensor, direction: Tensor) -> tuple[float, Tensor]:
    """Return the factor times the direction that x has, and what is left of x."""
    square = float(direction.square().sum())
    factor = float((x * direction).sum()) / square if square else 0.0
    return factor, x - factor * direction
