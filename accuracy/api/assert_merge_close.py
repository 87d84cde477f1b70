"""`accuracy.assert_merge_close`: is the merge of partial attention right, by itself? Needs torch only.

accuracy.assert_merge_close(merge_attn_states, partial_outs, partial_lses)
accuracy.assert_merge_close(out, partial_outs, partial_lses, lse=lse)
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from accuracy.api.bounds import must_be_beside, word_of
from accuracy.bound.merge import Partials, of_tokens, wrong_merges
from accuracy.core.dtype import FORMATS
from accuracy.core.errors import ConfigError, entry, unknown

BETWEEN = ("float32", "stored")


@entry()
def assert_merge_close(
    actual: Tensor | Sequence[Tensor] | Callable[..., Any], partial_outs: Tensor | Sequence[Tensor],
    partial_lses: Tensor | Sequence[Tensor], *, lse: Tensor | None = None, sinks: Tensor | None = None,
    base: float = math.e, between: str = "float32",
) -> dict[str, float]:  # fmt: skip
    """Compare a merge of partial attention with float64; the limits are those of rounding, for these partials.

    Partials are attention of the same queries over different keys, as split-KV, ring and decode kernels have them.

    Args:
        actual: out, (out, lse), or a function, called once as `actual(partial_outs, partial_lses)`. out (..., S, H, D)
            of any floating dtype, lse (..., H, S).
        partial_outs: (N, ..., S, H, D), or N tensors; what stands in a row without keys does not count.
        partial_lses: (N, ..., H, S), or N tensors; -inf in a row without keys.
        lse: the merged one, where actual is out alone.
        sinks: (H,), the logit of each head's sink, in the units of lse; it counts once, and lse has it.
        base: of lse, given and returned: e, or 2.
        between: `float32`, or `stored` where out is rounded to its dtype between one merge and the next.

    Returns:
        The largest error of out and lse, as a share of what rounding may do there.

    Raises:
        AssertionError: with the tensor, the worst place, by how much, and which wrong merge gives these numbers.
        ConfigError: a ValueError, for a wrong argument.
    """
    __tracebackhide__ = True
    if base not in (2, math.e):
        raise ConfigError(f"base={base!r}; allowed: math.e, 2")
    if between not in BETWEEN:
        raise unknown("between", between, BETWEEN)
    outs, lses = (_stacked(name, x) for name, x in (("partial_outs", partial_outs), ("partial_lses", partial_lses)))
    _check(outs, lses, sinks)
    found: Any = actual(partial_outs, partial_lses) if callable(actual) else actual
    out, *more = found if isinstance(found, list | tuple) and found else [found]
    lse = more[0] if more and lse is None else lse
    if not isinstance(out, Tensor) or not isinstance(lse, Tensor | None):
        kinds = ", ".join(type(x).__name__ for x in (out, lse) if not isinstance(x, Tensor | None)) or "None"
        raise ConfigError(f"{kinds} is no merge; give tensors: out, (out, lse), or a function that returns them")
    must_be_beside("partial_outs", outs, out=out, lse=lse)
    log = math.log(base)
    partials = Partials(_wide(outs), _wide(lses) * log, None if sinks is None else _wide(sinks) * log)
    right_out, right_lse = partials.merged()
    exact = all(x.dtype == torch.float64 for x in (out, outs, lses))
    unit = FORMATS["float64" if exact else "float32"].unit_roundoff
    word, rounding = word_of(out.dtype), FORMATS[word_of(out.dtype)].unit_roundoff
    stored = rounding if between == "stored" else 0.0
    of_out, of_lse = partials.limits(unit, stored, word, "float32" if lse is None else word_of(lse.dtype))
    lines, shares = [], {}
    for name, x, right, limit in (("out", out, right_out, of_out), ("lse", lse, right_lse / log, of_lse / log)):
        if x is not None:
            shares[name], line = _compared(name, x, right, limit)
            lines += [line] if line else []
    if not lines:
        return shares
    if tuple(out.shape) == tuple(right_out.shape):
        wide = _wide(out)
        others = ((words, (wide - x).abs(), of_out + 2 * rounding * x.abs()) for words, x in wrong_merges(partials))
        named = next((words for words, off, most in others if bool((off <= most).all())), None)
        lines += [f"that is the out of another merge: {named}"] if named else []
    raise AssertionError("\n".join(lines))


def _stacked(name: str, given: Tensor | Sequence[Tensor]) -> Tensor:
    if isinstance(given, Tensor):
        return given
    tensors = given if isinstance(given, list | tuple) else []
    kinds = {(x.shape, x.device) if isinstance(x, Tensor) else None for x in tensors}
    if len(kinds) != 1 or None in kinds:
        raise ConfigError(f"{name} must be a tensor (N, ...), or N tensors of one shape on one device")
    return torch.stack([*tensors])


def _check(outs: Tensor, lses: Tensor, sinks: Tensor | None) -> None:
    if outs.dim() < 4 or not outs.is_floating_point() or not lses.is_floating_point():
        raise ConfigError("partial_outs must be floating-point numbers (N, ..., S, H, D), partial_lses (N, ..., H, S)")
    *lead, tokens, heads, _ = outs.shape
    if tuple(lses.shape) != (*lead, heads, tokens):
        expected = (*lead, heads, tokens)
        raise ConfigError(f"partial_lses have the shape {tuple(lses.shape)}; of these partial_outs it is {expected}")
    if sinks is not None and not (isinstance(sinks, Tensor) and tuple(sinks.shape) == (heads,)):
        given = f"have the shape {tuple(sinks.shape)}" if isinstance(sinks, Tensor) else f"are a {type(sinks).__name__}"
        raise ConfigError(f"sinks {given}; of {heads} heads give a tensor ({heads},)")
    must_be_beside("partial_outs", outs, partial_lses=lses, sinks=sinks)
    if bool((lses == math.inf).any() or lses.isnan().any()):
        raise ConfigError("partial_lses are inf or nan; a row without keys has -inf, for which flash-attn 2 writes inf")
    if not bool((outs.isfinite() | (of_tokens(lses) == -math.inf)).all()):
        raise ConfigError("partial_outs are not finite where their lse is: what is merged is wrong already")


def _wide(x: Tensor) -> Tensor:
    try:
        return x.detach().double()
    except (TypeError, RuntimeError):  # a device without float64
        return x.detach().cpu().double()


def _compared(name: str, x: Tensor, right: Tensor, limit: Tensor) -> tuple[float, str]:
    """The largest error as a share of its limit, and what is wrong, if anything."""
    if tuple(x.shape) != tuple(right.shape):
        return math.inf, f"{name} has the shape {tuple(x.shape)}, expected {tuple(right.shape)}"
    wide = _wide(x)
    off = (wide - right).abs().masked_fill(wide == right, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
    share = off / limit
    worst = float(share.max()) if share.numel() else 0.0
    if worst <= 1:
        return worst, ""
    place = tuple(int(each) for each in torch.unravel_index(share.argmax(), share.shape))
    value, expected, error, most = (float(each[place]) for each in (wide, right, off, limit))
    words = "token, head, dim" if name == "out" else "head, token"
    return worst, (
        f"{name} is merged wrong: at {place} (..., {words}) it is {value:.6g} and should be {expected:.6g}, off by"
        f" {error:.3g}, allowed {most:.3g}"
    )
