"""`accuracy.bounds`: how far can rounding carry each element of attention? With the float64 reference beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from accuracy.bound.policy import POLICIES, Policy
from accuracy.bound.running import Bound, of_sinks
from accuracy.bound.running import bounds as running_bounds
from accuracy.core.dtype import FORMATS
from accuracy.core.errors import ConfigError, entry, unknown
from accuracy.core.number import count
from accuracy.live.functions import folded
from accuracy.reference import float64
from accuracy.reference.float64 import Reference
from accuracy.runtime import arithmetic, given_mask

HOW = ("causal", "softmax_scale", "window", "documents", "softcap", "sinks", "attn_mask", "rows", "dlse")
"""Keywords that say which attention it is."""


@dataclass(frozen=True)
class Attention:
    """Which attention it is, and of how many merged pieces."""

    causal: bool = False
    softmax_scale: float | None = None
    window: int | None = None
    documents: Sequence[int] = ()
    softcap: float | None = None
    sinks: Sequence[float] | Tensor = ()
    attn_mask: Tensor | None = None
    rows: Sequence[int] | Tensor | None = None
    dlse: Tensor | None = None
    pieces: int = 1

    def scale(self, q: Tensor) -> float:
        """Return what scores are multiplied by: the softmax scale, D^-0.5 of q (B, Sq, H, D) where none was given."""
        return q.shape[-1] ** -0.5 if self.softmax_scale is None else float(self.softmax_scale)

    def how(self, q: Tensor, k: Tensor) -> dict[str, Any]:
        """Return it as keyword arguments of the reference and of running bounds."""
        mask = None if self.attn_mask is None else in_four(self.attn_mask).expand(-1, -1, q.shape[1], k.shape[1])
        return {
            "scale": self.scale(q), "causal": self.causal, "window": self.window, "documents": self.documents,
            "softcap": self.softcap, "sinks": [float(each) for each in self.sinks], "mask": mask, "dlse": self.dlse,
        }  # fmt: skip

    def check(self, q: Tensor, k: Tensor) -> None:
        """Raise ConfigError for a value that cannot be of q (B, Sq, H, D) and k (B, S, Hk, D)."""
        keys, heads, lengths, sinks = k.shape[1], q.shape[2], self.documents, listed(self.sinks)
        allowed = {
            "causal": (type(self.causal) is bool, "True (the last query sees the last key) or False"),
            "softmax_scale": (_is_positive(self.softmax_scale), "a number above 0, or None"),
            "softcap": (_is_positive(self.softcap), "a number above 0, or None"),
            "window": (self.window is None or _is_whole(self.window, 0), "a whole number from 0, or None"),
            "pieces": (_is_whole(self.pieces, 1), "a whole number from 1"),
            "documents": (
                isinstance(lengths, Sequence)
                and (not lengths or (all(_is_whole(n, 1) for n in lengths) and sum(lengths) == keys == q.shape[1])),
                f"lengths whose sum is the number of tokens, {keys}",
            ),
            "sinks": (
                sinks == [] or (sinks is not None and len(sinks) == heads and all(_is_number(each) for each in sinks)),
                f"a finite logit of each of {heads} heads",
            ),
        }
        for name, (right, what) in allowed.items():
            if not right:
                raise ConfigError(f"{name}={getattr(self, name)!r}; allowed: {what}")
        if self.attn_mask is not None:
            _check_mask(self.attn_mask, q, k)
        if self.rows is not None:
            self.tokens(q.shape[1], keys)
        full = q.shape[0], heads, q.shape[1]
        given = self.dlse
        if isinstance(given, Tensor) and not bool(given.isfinite().all()):
            raise ConfigError("dlse has values that are not finite; no limits are known for such inputs")
        if given is not None and not (isinstance(given, Tensor) and given.is_floating_point() and given.shape == full):
            shown = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise ConfigError(f"dlse came as {shown}; give the gradient of lse, numbers (B, H, Sq) = {full}")

    def tokens(self, queries: int, keys: int) -> Tensor:
        """rows as positions of tokens. Raises ConfigError."""
        given = torch.as_tensor(listed(self.rows) or [])
        fits = given.numel() and not given.is_floating_point() and given.dtype != torch.bool
        if not fits or queries != keys or int(given.min()) < 0 or int(given.max()) >= keys:
            shown = f"{tuple(given.shape)} {given.dtype}" if given.numel() else type(self.rows).__name__
            allowed = f"positions of this rank's tokens, from 0 to {keys - 1}, where q has as many as k"
            raise ConfigError(f"rows came as {shown} for {queries} queries and {keys} keys; allowed: {allowed}")
        return given.long()


@dataclass(frozen=True)
class Exact:
    """The reference of some inputs, and by tensor how far an implementation of a policy can be from it. tokens: their
    positions, of a rank's own rows; None: all."""

    reference: Reference
    bounds: dict[str, Bound]
    policy: Policy
    tokens: Tensor | None = None

    def of_rows(self, tokens: Tensor) -> "Exact":
        """The same of some tokens alone."""

        def chosen(name: str, x: Any) -> Any:
            if name in ("dsink", "dbias"):  # of all rows
                return x
            return x.index_select(2 if name in ("lse", "delta", "max_logit") else 1, tokens.to(x.device))

        reference = Reference(**{name: chosen(name, x) for name, x in vars(self.reference).items()})
        bounds = {
            name: Bound(**{key: chosen(name, x) for key, x in vars(each).items()}) for name, each in self.bounds.items()
        }
        return replace(self, reference=reference, bounds=bounds, tokens=tokens)


@entry((*HOW, "score_mod", "policy", "pieces"))
def bounds(q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None = None, **how: Any) -> dict[str, Bound]:
    """Largest errors of out, lse and, where dout is given, dq, dk, dv of these inputs, element by element.

    q, dout: (B, Sq, H, D), k, v: (B, S, Hk, D), of one dtype. how: causal=False (the last query sees the last key),
    softmax_scale=D**-0.5, window, documents (lengths), softcap, sinks (a logit a head), attn_mask (True where a query
    sees a key, or what is added to the scores, broadcast to (B, H, Sq, S)), rows (positions of tokens, of which alone
    bounds are returned), dlse (B, H, Sq), the gradient of lse, where it has one; score_mod of flex_attention, which
    adds to scores, caps them by tanh or hides keys; policy: `loosest` or `kernel`, or an
    `accuracy.bound.policy.Policy`; pieces: ranks or chunks that are merged.

    Of each tensor, in its shape and float64: `certain`, which no implementation within the policy exceeds: an error
    beyond it is no rounding; `likely(p)`, exceeded with a chance of p at most where roundings are independent. Their
    derivation: accuracy/bound/README.md. Raises ConfigError, a ValueError.
    """
    policy, score_mod = how.pop("policy", "loosest"), how.pop("score_mod", None)
    check_tensors(q, k, v, dout)
    if score_mod is not None:
        if clash := next((word for word in ("attn_mask", "softcap") if how.get(word) is not None), None):
            raise ConfigError(f"score_mod came with {clash}; put both into score_mod")
        how |= folded(score_mod, q, k)
    attention = Attention(**how)
    attention.check(q, k)
    if attention.dlse is not None and dout is None:
        raise ConfigError("dlse came without dout, the gradient of out; give dout=, zeros where the loss has lse alone")
    word = str(q.dtype).removeprefix("torch.")
    rounding = policy if isinstance(policy, Policy) else policy_of(policy, word, attention.pieces)
    found = exact(q, k, v, dout, attention, rounding).bounds
    asked = ("out", "lse") if dout is None else ("out", "lse", "dq", "dk", "dv")
    return {name: found[name] for name in asked}


def exact(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None, attention: Attention, rounding: Policy,
    stored_dsink: str | None = None, stored_dbias: str | None = None, stored_max_logit: str | None = None,
    is_bounded: bool = True,
) -> Exact:  # fmt: skip
    """Return the reference and the bounds for checked arguments. dout None: gradients are those of no dout, zero;
    stored_dsink, stored_dbias, stored_max_logit: the dtype of dsink, of attn_mask's gradient, of max_logit; None: it is
    not asked about; is_bounded: False leaves the bounds away."""
    dout = torch.zeros_like(q[..., :1]).expand(*q.shape[:-1], v.shape[-1]) if dout is None else dout
    how = attention.how(q, k)
    if stored_dbias is not None and attention.attn_mask is not None:
        how["of_bias"] = in_four(attention.attn_mask).shape
    try:
        with arithmetic.exact(), torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            reference = float64.attention(q, k, v, dout, **how)
            if attention.attn_mask is not None and bool(reference.lse.isneginf().any()):
                raise ValueError("the mask hides all keys of some query; what its out should be nobody has agreed on")
            how |= {"stored_dbias": stored_dbias or "", "of_max_logit": stored_max_logit is not None}
            found = running_bounds(q, k, v, dout, reference, rounding, **how) if is_bounded else {}
            if stored_dsink is not None:
                sinks = torch.tensor(how["sinks"], dtype=torch.float64, device=q.device)
                found["dsink"] = of_sinks(reference, found, sinks, dout, rounding, stored_dsink, attention.dlse)
    except ValueError as error:  # a row that sees no key
        raise ConfigError(str(error)) from None
    every = Exact(reference, found, rounding)
    return every if attention.rows is None else every.of_rows(attention.tokens(q.shape[1], k.shape[1]))


def listed(x: Any) -> list[Any] | None:
    """Return numbers in one dimension as a list; None for anything else."""
    try:
        found = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError):
        return None
    return found.tolist() if found.dim() == 1 else None


def in_four(x: Tensor) -> Tensor:
    """Return a mask or a bias, or the gradient of one, detached and with four dimensions."""
    return x.detach().reshape((1,) * (4 - x.dim()) + tuple(x.shape))


def word_of(dtype: torch.dtype) -> str:
    """Return what a dtype is called. Raises ConfigError for one whose rounding is not known."""
    word = str(dtype).removeprefix("torch.")
    if word not in FORMATS:
        raise ConfigError(f"dtype {word} is not known; allowed: {', '.join(FORMATS)}")
    return word


def _check_mask(mask: object, q: Tensor, k: Tensor) -> None:
    """Raise ConfigError for what cannot hide keys, or be added to scores, of q (B, Sq, H, D) and k (B, S, Hk, D)."""
    full = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
    words = f"True where a query sees a key, or what is added to the scores, broadcast to (B, H, Sq, S) = {full}"
    checked = given_mask.checked(mask, words)
    if not given_mask.fits(checked, full):
        raise ConfigError(f"attn_mask has the shape {tuple(checked.shape)}; give {words}")
    must_be_beside("q", q, attn_mask=checked)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and math.isfinite(value)


def _is_positive(value: object) -> bool:
    return value is None or (_is_number(value) and value > 0)  # type: ignore[operator]


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and type(value) is not bool and value >= least


def policy_of(policy: str, dtype: str, pieces: int, stored_lse: str | None = None) -> Policy:
    """Return the policy of a name, for results of a dtype. Raises ConfigError."""
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    changes = {} if stored_lse is None else {"stored_lse": stored_lse}
    named: Policy = POLICIES[policy](dtype, pieces=pieces, **changes)  # type: ignore[operator]
    return named


def must_be_beside(name: str, like: Tensor, **others: Tensor | None) -> None:
    """Raise ConfigError for a tensor on another device than `like`, which the caller knows by a name."""
    for other, x in others.items():
        if x is not None and x.device != like.device:
            raise ConfigError(f"{other} is on {x.device} and {name} on {like.device}; put them on one device")


def check_tensors(q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None) -> None:
    """Raise ConfigError for shapes, dtypes or devices that do not fit."""
    named = {"q": q, "k": k, "v": v} | ({} if dout is None else {"dout": dout})
    for name, x in named.items():
        if not isinstance(x, Tensor) or x.dim() != 4 or not x.numel():
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ConfigError(f"{name} came as {shape}, expected a tensor (batch, tokens, heads, head dim)")
        if x.dtype != q.dtype or str(q.dtype).removeprefix("torch.") not in FORMATS:
            also = f" and q {q.dtype}" if x is not q else ""
            raise ConfigError(f"{name} is {x.dtype}{also}; give one dtype of {', '.join(FORMATS)}")
        must_be_beside("q", q, **{name: x})
        if broken := int((~x.isfinite()).sum()):
            raise ConfigError(f"{name} has {count(broken, 'value')} not finite; no limits are known for such inputs")
    batch, queries, heads, dim = q.shape
    if k.shape[0] != batch or k.shape[3] != dim or heads % k.shape[2]:
        raise ConfigError(f"k {tuple(k.shape)} does not fit q {tuple(q.shape)}: same batch and head dim, heads divide")
    if v.shape[:3] != k.shape[:3]:
        raise ConfigError(f"v {tuple(v.shape)} does not fit k {tuple(k.shape)}: same batch, tokens and heads")
    if dout is not None and dout.shape != (batch, queries, heads, v.shape[3]):
        raise ConfigError(f"dout came as {tuple(dout.shape)}, expected {(batch, queries, heads, v.shape[3])}")
