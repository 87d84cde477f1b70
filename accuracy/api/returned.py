"""What a function returned, or the caller gave: out, and perhaps lse and the largest scores, by their names."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from accuracy.api.bounds import Attention, Exact, exact
from accuracy.bound import policy
from accuracy.bound.policy import half_spacing
from accuracy.bound.running import Bound
from accuracy.core.errors import ConfigError
from accuracy.live.tensor_core import marks
from accuracy.live.uncounted import scaled, through_maximum

EXPECTED = "give out, (out, lse), (out, lse, max_logit), or a function that returns one of these"
AUXILIARY = {"lse": ("lse",), "max_logit": ("max_logit", "max_scores")}
"""By our name, those of the attributes of what flex_attention returns beside out."""


def as_tensor(x: Any, name: str) -> Tensor:
    """Return a tensor as it is, and an array of another library that has `__dlpack__` without a copy."""
    if isinstance(x, Tensor):
        return x
    if hasattr(x, "__dlpack__"):
        return torch.from_dlpack(x)
    raise ConfigError(f"{name} is a {type(x).__name__}, expected a tensor")


def results(result: Any) -> dict[str, Tensor]:
    """Return out and perhaps lse and max_logit of what a function gives, or the caller. Raises ConfigError."""
    values = (result,) if isinstance(result, Tensor) or hasattr(result, "__dlpack__") else result
    if isinstance(values, Mapping) or not isinstance(values, Sequence) or not 1 <= len(values) <= 3:
        what = f"{len(values)} values" if isinstance(values, tuple | list) else f"a {type(result).__name__}"
        raise ConfigError(f"{what} came; {EXPECTED}")
    named = dict(zip(("out", "lse", "max_logit"), values, strict=False))
    second = named.get("lse")
    if len(values) == 2 and any(hasattr(second, name) for names in AUXILIARY.values() for name in names):
        named |= {word: getattr(second, name, None) for word, names in AUXILIARY.items() for name in names}
    elif len(values) == 2 and len(getattr(second, "shape", ())) == 1:  # a number a head is no lse
        named["max_logit"] = named.pop("lse")
    found = {name: as_tensor(x, name) for name, x in named.items() if x is not None}
    if "out" not in found:
        raise ConfigError("out is None; give a tensor")
    most = found.get("max_logit")
    if most is not None and not (most.dim() in (1, 2, 3) and most.numel() and most.is_floating_point()):
        del found["max_logit"]  # flash-attn's third value is its weights, or nothing, or the state of a generator
    return found


def without_padding(found: Mapping[str, Tensor], given: Sequence[int], rows: Sequence[int]) -> dict[str, Tensor]:
    """Return the rows of packed results (T, heads, D), lse (H, T), whose tokens are `given`, as positions."""
    order = {row: place for place, row in enumerate(given)}
    places = torch.tensor([order[row] for row in rows])

    def own(name: str, x: Tensor) -> Tensor:
        axis = -1 if name in ("lse", "max_logit") else 0
        fits = name not in ("dsink", "dbias") and x.dim() > 1 and x.shape[axis] == len(given)
        return x.index_select(axis, places.to(x.device)) if fits else x

    return {name: own(name, x) for name, x in found.items()}


def of_largest(reference: Tensor, bound: Bound, x: Tensor, dtype: str) -> tuple[Tensor, Bound]:
    """Return the reference and the bound of max_logit as it came: of rows (B, H, Sq), of items (B, H, 1) or of all
    (1, H, 1). dtype: in which it is stored."""
    dims = [at for at, (size, all_) in enumerate(zip(x.shape, reference.shape, strict=False)) if size == 1 < all_]
    most, certain, variance = (each.amax(dims, True) if dims else each for each in
                               (reference, bound.certain, bound.variance))  # fmt: skip
    last = half_spacing(most.abs() + certain.nan_to_num(posinf=0.0), dtype)
    return most, Bound.of(certain + last, variance + last.square() / 3)


def others(
    wrong: Collection[str], tensors: list[Any], truth: Exact, attention: Attention, **stored: Any
) -> Iterator[Exact]:
    """Yield the references and bounds by which these tensors may be right, though they are beyond those of `truth`.

    tensors: q (B, Sq, H, D), k (B, S, Hk, D), v, dout; stored: as in `exact`.
    """
    q, k, v, dout = tensors
    if {*wrong} <= {"lse", "max_logit"} and q.element_size() == 2:
        for own in scaled(q, k, attention.scale(q), lambda x: x.to(q.dtype)):
            yield exact(*own, v, dout, attention, truth.policy, **stored)
    if {*wrong} <= {"dq", "dk"} and attention.rows is None:
        given = truth.reference, truth.bounds, truth.policy
        yield replace(truth, bounds=through_maximum(q, k, v, dout, *given, **attention.how(q, k)))


def in_coarser_products(
    wrong: Mapping[str, Tensor], tensors: Sequence[Any], truth: Exact, attention: Attention, **stored: Any
) -> Iterator[tuple[str, Exact, float]]:
    """Yield what a function computes products of float32 in, references and bounds of attention in that, and by how
    much it may shift a gain; nothing where no mark of it is on out, nor on dv where out is right.

    wrong: results that float32 does not explain, (B, S, H, D), lse (B, H, Sq), of a function of `tensors`, q, k, v,
    dout; truth: of the same in float32; stored: as in `exact`. An operand that is cut off loses up to one unit roundoff
    in the mean: of a gradient these are P or dS and, unless all operands are known to be rounded, two of q, k, v, dout.
    """
    decides = "out" if "out" in wrong else "dv"
    x, reference = wrong.get(decides), getattr(truth.reference, decides)
    if x is None or not x.dtype == tensors[0].dtype == torch.float32 or x.shape != reference.shape:
        return

    def inside(q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None) -> Tensor:
        """Return the tensor that decides; gradients are computed only where one of them does."""
        wants = (dout, attention) if decides == "dv" else (None, replace(attention, dlse=None))
        only = exact(q, k, v, *wants, truth.policy, is_bounded=False)
        return cast(Tensor, getattr(only.reference, decides))

    given = tuple(tensors)
    for letters, products, own in marks(decides, x, given, truth.reference, attention.scale(tensors[0]), inside):
        form = "tf32" if products == "tf32_cut" else products
        coarse = exact(*own, attention=attention, rounding=policy.cast(truth.policy, form), **stored)
        exactly = () if "q" in letters else ("lse", "max_logit")  # of scores in float32
        bounds = coarse.bounds | {name: x for name, x in truth.bounds.items() if name in exactly}
        drift = (3 if products == "tf32_cut" and letters != "qkvo" else 2) * policy.unit(form)
        yield products, replace(coarse, bounds=bounds, policy=truth.policy), drift
