"""Masks and biases that a caller hands over: a problem has the name of one, and the caller's process keeps it.

A mask is boolean, True where a query sees a key, or numbers that are added to the scores, rounded to the case's dtype.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from accuracy.core.errors import ConfigError, one_line

if TYPE_CHECKING:  # pydantic, which bounds and assert_close do without
    from accuracy.core.case import Problem

WANTED = "True where a query sees a key, or what is added to the scores, or a function of (B, H, Sq, S) that returns it"
_kept: dict[str, Any] = {}


def keep(mask: Any) -> str:
    """Keep a tensor, or a callable of four sizes that returns one; return its name. Raises ConfigError."""
    if isinstance(mask, Tensor):
        wanted = checked(mask).requires_grad
        mask = mask.detach().clone()
        numbers = mask.cpu().flatten().view(torch.uint8).numpy().tobytes()
        content = f"{mask.dtype} {tuple(mask.shape)} {wanted}".encode() + numbers
        mask.requires_grad_(wanted)
    elif callable(mask):
        content = _code(mask)
    else:
        raise ConfigError(f"attn_mask is a {type(mask).__name__}; give {WANTED}")
    name = f"given:{hashlib.sha256(content).hexdigest()[:8]}"
    _kept[name] = mask
    return name


def sizes(mask: Any) -> dict[str, int]:
    """Return the sizes of a problem that a tensor fits alone, by their names."""
    shape = (1,) * (4 - mask.dim()) + tuple(mask.shape) if isinstance(mask, Tensor) and mask.dim() <= 4 else (1,) * 4
    batch, heads, queries, keys = shape
    found = {"batch": batch, "heads": heads, "seqlen_q": queries if queries != keys else 1, "seqlen": keys}
    return {name: size for name, size in found.items() if size > 1}


def given(problem: "Problem") -> Tensor | None:
    """Return a problem's mask as it came, in four dimensions, or None. Raises ValueError where it does not fit."""
    if problem.attn_mask is None:
        return None
    full = problem.batch, problem.heads, problem.queries, problem.seqlen
    if problem.attn_mask not in _kept:
        raise ValueError(f"attn_mask={problem.attn_mask} is not known in this process; give it to accuracy.measure")
    mask = _kept[problem.attn_mask]
    if not isinstance(mask, Tensor):
        try:
            with torch.enable_grad():
                mask = mask(*full)
        except Exception as error:  # a function of anyone's
            raise ValueError(f"attn_mask is a function that raised {one_line(error)}; it gets B, H, Sq and S") from None
        checked(mask)
    if not fits(mask, full):
        raise ValueError(f"attn_mask has the shape {tuple(mask.shape)}, which is not broadcast to {full}")
    return mask[(None,) * (4 - mask.dim())]


def in_four(problem: "Problem", dtype: torch.dtype, device: torch.device | str) -> Tensor | None:
    """Return the same as (1 or B, 1 or H, Sq, S), numbers in a dtype, or None."""
    mask = given(problem)
    if mask is None:
        return None
    mask = mask.detach().to(device, mask.dtype if mask.dtype == torch.bool else dtype)
    return mask.expand(-1, -1, problem.queries, problem.seqlen)


def of_gradient(problem: "Problem") -> tuple[int, ...]:
    """Return the shape (1 or B, 1 or H, 1 or Sq, 1 or S) of a bias that wants a gradient, or nothing."""
    mask = given(problem)
    return tuple(mask.shape) if mask is not None and mask.requires_grad else ()


def seeing_all(problem: "Problem") -> str | None:
    """Return the name of a mask of the same kind as a problem's, under which every key is seen as it is, or None."""
    try:
        mask = given(problem)
    except ValueError:  # which the plan says
        return problem.attn_mask
    return None if mask is None else keep(torch.ones(1) > 0 if mask.dtype == torch.bool else torch.zeros(1))


def added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what a mask adds to scores."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else mask


def unsupported(problem: "Problem") -> str | None:
    """Return why a problem's mask cannot be its own, or None."""
    try:
        mask = in_four(problem, torch.float32, "cpu")
    except ValueError as error:
        return str(error)
    if mask is None:
        return None
    places = range(problem.query_offset, problem.query_offset + problem.queries)
    first, last = torch.tensor([problem.visibility.interval(place, problem.seqlen) for place in places]).T[..., None]
    key = torch.arange(problem.seqlen)
    seen = (mask if mask.dtype == torch.bool else mask.isfinite()) & (key >= first) & (key < last)
    if not bool(seen.any(-1).all()):
        return "attn_mask hides all keys of some query; what its out should be nobody has agreed on"
    return None


def checked(mask: object, wanted: str = WANTED) -> Tensor:
    """Return the mask. Raises ConfigError, with what is wanted, for what can neither hide keys nor be added."""
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ConfigError(f"attn_mask is {getattr(mask, 'dtype', type(mask).__name__)}; give {wanted}")
    if mask.dtype != torch.bool and bool((mask.isnan() | (mask == torch.inf)).any()):
        raise ConfigError("attn_mask has nan or inf; a key is hidden by -inf")
    return mask


def fits(mask: Tensor, full: Sequence[int]) -> bool:
    """Return whether a mask can be broadcast to (B, H, Sq, S)."""
    pairs = zip(mask.shape[::-1], full[::-1], strict=False)
    return mask.dim() <= len(full) and all(size in (1, right) for size, right in pairs)


def _code(mask: Callable[..., Any]) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]

    try:
        return bytes(cloudpickle.dumps(mask))
    except Exception:  # whatever an object does to be pickled
        return repr(mask).encode()
