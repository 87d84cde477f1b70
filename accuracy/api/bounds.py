"""`accuracy.bounds`: how far can rounding carry each element of attention? With the float64 reference beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accuracy.bound.policy import POLICIES, Policy
from accuracy.bound.running import Bound
from accuracy.bound.running import bounds as running_bounds
from accuracy.core.dtype import FORMATS
from accuracy.core.errors import ConfigError, entry, unknown
from accuracy.core.number import count
from accuracy.reference import float64
from accuracy.reference.float64 import Reference
from accuracy.runtime import arithmetic

HOW = ("causal", "softmax_scale", "window", "documents", "softcap", "sinks")
"""Keywords that say which attention it is."""


@dataclass(frozen=True)
class Exact:
    """The reference of some inputs, and by tensor how far an implementation of a policy can be from it."""

    reference: Reference
    bounds: dict[str, Bound]
    policy: Policy


@entry((*HOW, "policy", "pieces"))
def bounds(q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None = None, **how: Any) -> dict[str, Bound]:
    """Largest errors of out, lse and, where dout is given, dq, dk, dv of these inputs, element by element.

    q, dout: (B, Sq, H, D), k, v: (B, S, Hk, D), of one dtype. how: causal=False (the last query sees the last key),
    softmax_scale=D**-0.5, window, documents (lengths), softcap, sinks (a logit a head); policy: `loosest` or `kernel`,
    or an `accuracy.bound.policy.Policy`; pieces: ranks or chunks that are merged.

    Of each tensor, in its shape and float64: `certain`, which no implementation within the policy exceeds: an error
    beyond it is no rounding; `likely(p)`, exceeded with a chance of p at most where roundings are independent. Their
    derivation: accuracy/bound/README.md. Raises ConfigError, a ValueError.
    """
    check_tensors(q, k, v, dout)
    check_how(q, k, **{name: value for name, value in how.items() if name != "policy"})
    found = exact(q, k, v, dout, **how).bounds
    return found if dout is not None else {name: found[name] for name in ("out", "lse")}


def exact(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None, *, causal: bool = False,
    softmax_scale: float | None = None, window: int | None = None, documents: Sequence[int] = (),
    softcap: float | None = None, sinks: Sequence[float] = (), policy: str | Policy = "loosest", pieces: int = 1,
    stored_lse: str | None = None,
) -> Exact:  # fmt: skip
    """What `bounds` and `assert_close` are made of, which have checked the arguments. dout None: gradients are those of
    no dout, zero."""
    word = str(q.dtype).removeprefix("torch.")
    rounding = policy if isinstance(policy, Policy) else _named(policy, word, pieces, stored_lse)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    given = torch.zeros_like(q[..., :1]).expand(*q.shape[:-1], v.shape[-1]) if dout is None else dout
    how = {
        "scale": scale, "causal": causal, "window": window, "documents": documents, "softcap": softcap, "sinks": sinks,
    }  # fmt: skip
    try:
        with arithmetic.exact(), torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            reference = float64.attention(q, k, v, given, **how)  # type: ignore[arg-type]
            found = running_bounds(q, k, v, given, reference, rounding, **how)  # type: ignore[arg-type]
    except ValueError as error:  # a row that sees no key
        raise ConfigError(str(error)) from None
    return Exact(reference, found, rounding)


def check_how(
    q: Tensor, k: Tensor, causal: bool = False, softmax_scale: float | None = None, window: int | None = None,
    documents: Sequence[int] = (), softcap: float | None = None, sinks: Sequence[float] = (), pieces: int = 1,
) -> None:  # fmt: skip
    """Which attention it is, and of how many pieces. Raises ConfigError."""
    queries, keys, heads = q.shape[1], k.shape[1], q.shape[2]

    def refuse(name: str, value: object, allowed: str) -> None:
        raise ConfigError(f"{name}={value!r}; allowed: {allowed}")

    if type(causal) is not bool:
        refuse("causal", causal, "True (the last query sees the last key) or False")
    for name, value in (("softmax_scale", softmax_scale), ("softcap", softcap)):
        if value is not None and not (_is_number(value) and value > 0):
            refuse(name, value, "a number above 0, or None")
    if window is not None and not (_is_whole(window) and window >= 0):
        refuse("window", window, "a whole number from 0, or None")
    if not _is_whole(pieces) or pieces < 1:
        refuse("pieces", pieces, "a whole number from 1")
    if len(documents) and not (
        all(_is_whole(each) and each > 0 for each in documents) and sum(documents) == keys == queries
    ):
        refuse("documents", documents, f"lengths whose sum is the number of tokens, {keys}")
    if len(sinks) and not (len(sinks) == heads and all(_is_number(float(each)) for each in sinks)):
        refuse("sinks", sinks, f"a finite logit of each of {heads} heads")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and math.isfinite(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and type(value) is not bool


def _named(policy: str, dtype: str, pieces: int, stored_lse: str | None) -> Policy:
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    changes = {} if stored_lse is None else {"stored_lse": stored_lse}
    named: Policy = POLICIES[policy](dtype, pieces=pieces, **changes)  # type: ignore[operator]
    return named


def check_tensors(q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None) -> None:
    """Shapes, dtypes and devices. Raises ConfigError."""
    named = {"q": q, "k": k, "v": v} | ({} if dout is None else {"dout": dout})
    for name, x in named.items():
        if not isinstance(x, Tensor) or x.dim() != 4 or not x.numel():
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ConfigError(f"{name} came as {shape}, expected a tensor (batch, tokens, heads, head dim)")
        if x.dtype != q.dtype or str(q.dtype).removeprefix("torch.") not in FORMATS:
            also = f" and q {q.dtype}" if x is not q else ""
            raise ConfigError(f"{name} is {x.dtype}{also}; give one dtype of {', '.join(FORMATS)}")
        if broken := int((~x.isfinite()).sum()):
            raise ConfigError(f"{name} has {count(broken, 'value')} not finite; no limits are known for such inputs")
        if x.device != q.device:
            raise ConfigError(f"{name} is on {x.device} and q on {q.device}; put them on one device")
    batch, queries, heads, dim = q.shape
    if k.shape[0] != batch or k.shape[3] != dim or heads % k.shape[2]:
        raise ConfigError(f"k {tuple(k.shape)} does not fit q {tuple(q.shape)}: same batch and head dim, heads divide")
    if v.shape[:3] != k.shape[:3]:
        raise ConfigError(f"v {tuple(v.shape)} does not fit k {tuple(k.shape)}: same batch, tokens and heads")
    if dout is not None and dout.shape != (batch, queries, heads, v.shape[3]):
        raise ConfigError(f"dout came as {tuple(dout.shape)}, expected {(batch, queries, heads, v.shape[3])}")
