"""For a repository with one kernel and no ranks: `assert_close(out, q, k, v)` instead of a tolerance. Needs torch only.

accuracy.assert_close(my_attention, q, k, v, dout=dout, causal=True)
accuracy.assert_close(out, q, k, v, causal=True, lse=lse, dout=dout, dq=q.grad, dk=k.grad, dv=v.grad)
"""

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from accuracy.api import calling
from accuracy.api.bounds import Attention, Exact, check_tensors, exact, listed, must_be_beside, policy_of, word_of
from accuracy.api.calling import GRADIENTS, SCALES, as_tensor, in_bshd, in_layout, meant
from accuracy.api.returned import in_coarser_products, of_largest, others, without_padding
from accuracy.bound.limits import ALARM, DRIFT, Beyond, beyond, limits
from accuracy.bound.policy import Policy, eight_bits, unit
from accuracy.bound.running import Bound
from accuracy.core.dtype import PRODUCTS
from accuracy.core.errors import ConfigError, entry, unknown
from accuracy.live.functions import known
from accuracy.runtime.layout import LAYOUTS, PACKED

PLACES = ("batch", "token", "head", "dim")
OWN_SHAPE = ("lse", "dsink", "dbias", "max_logit")
"""Tensors that are in no layout of tokens, and may have another dtype."""
WORDS = {
    "lse": ("batch", "head", "token"), "max_logit": ("batch", "head", "token"), "dsink": ("", "", "head"),
    "dbias": ("batch", "head", "query", "key"),
}  # fmt: skip
ARRAYS = ("attn_mask", "sinks", "dlse")
ARITHMETIC = ("float32", "tf32")
SOURCE = {
    "loosest": "rounding alone where scores, weights, lse and partial results are stored in {dtype}",
    "kernel": "rounding alone of a kernel that computes in float32 and rounds weights to {dtype}",
}


@entry(calling.CALLED)
def assert_close(
    actual: Tensor | Sequence[Tensor] | Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, *,
    dout: Tensor | None = None, lse: Tensor | None = None, dq: Tensor | None = None, dk: Tensor | None = None,
    dv: Tensor | None = None, dsink: Tensor | None = None, dbias: Tensor | None = None,
    max_logit: Tensor | None = None,
    layout: str | None = None, policy: str = "loosest", arithmetic: str | None = None,
    pieces: int = 1, **how: Any,
) -> dict[str, float]:  # fmt: skip
    """Compare attention with float64 on the same rounded inputs; the limits are those of rounding, for these inputs.

    Args:
        actual: out, (out, lse), (out, lse, max_logit), or a function, which is called once with q, k and v in its
            layout and, where it has parameters for them, with the mask, the scale and what else of `how` is given, by
            its own names.
        q, k, v: (B, Sq, H, D), (B, S, Hk, D) and (B, S, Hk, Dv), of one dtype; or in another layout. Hk divides H.
        dout: (B, Sq, H, Dv), the gradient of out; a function's gradients come from autograd then.
        lse: (B, H, Sq), natural log, any dtype; (H, T) with layout="thd".
        dq, dk, dv: gradients of (out * dout).sum(), and with dlse of (lse * dlse).sum(), in their inputs' shape, dtype.
        dsink: (H,), that of sinks, any dtype; autograd gives it where a function gets sinks as a tensor.
        max_logit: the largest score as softmax has it (scaled, capped, with its bias, of keys that are seen), of each
            row (B, H, Sq), of each head of an item (B, H), or of each head (H,); any dtype. A function may return it
            behind lse, in place of it where it is (H,), or as flex_attention does.
        dbias: that of a bias given as attn_mask, in its shape; autograd gives it where the bias wants a gradient.
        layout: bshd, bhsd, sbhd, thd (packed sequences), or kvpacked and qkvpacked, which a function gets in one. None:
            that of a function which is known by its name, as those of torch and flash-attn are, else bshd.
        policy: `loosest`, what anybody's function may do and still be called rounding, or `kernel`, a fused kernel's
            roundings.
        arithmetic: of float32's products. A function that computes them in TF32, as tensor cores do, or of bfloat16
            parts passes with a UserWarning that says so; `float32` refuses it, `tf32` lets it pass in silence.
        pieces: ranks or chunks whose partial results are merged.
        how: causal (True: the last query sees the last key), softmax_scale; where they are not given, a function's own
            defaults, else False and D**-0.5. window (keys on both sides), documents (lengths), softcap, sinks (a logit
            a head), attn_mask (True where a query sees a key, or a bias), dlse (of a loss with lse in it), rows
            (positions of the tokens that one rank returned), as in `accuracy.bounds`; cu_seqlens, or cu_seqlens_q and
            cu_seqlens_k, of packed sequences, and cu_seqlens_padded, where each begins if padding is behind it;
            block_mask, mask_mod and score_mod of flex_attention (score_mod: one that adds to scores, caps them by tanh
            or hides keys); q_descale, k_descale and v_descale, of tensors in 8 bits: numbers, (B, H) or (B, Hk), or
            what broadcasts to the tensor.

    Returns:
        The relative error of each compared tensor, by its name. A UserWarning names those that no limit judges: of
        scores in the thousands rounding alone can make dq and dk anything.

    Raises:
        AssertionError: with the tensor that is wrong, its worst place, by how much, and where the limit is from.
        ConfigError: a ValueError, for a wrong argument.
    """
    __tracebackhide__ = True
    layout = getattr(known(actual), "called_in", "bshd") if layout is None else layout
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS)
    how = {word: as_tensor(x, word) if word in ARRAYS and hasattr(x, "__dlpack__") else x for word, x in how.items()
           if x is not None or word == "softmax_scale"}  # fmt: skip
    inputs = {name: None if x is None and name == "dout" else as_tensor(x, name) for name, x in
              {"q": q, "k": k, "v": v, "dout": dout}.items()}  # fmt: skip
    returned = {"lse": lse, "dq": dq, "dk": dk, "dv": dv, "dsink": dsink, "dbias": dbias,
                "max_logit": max_logit}  # fmt: skip
    named = {name: as_tensor(x, name) for name, x in returned.items() if x is not None}
    gradients = [name for name in GRADIENTS.values() if name in named]
    if policy not in SOURCE:
        raise unknown("policy", policy, SOURCE)
    if arithmetic not in (None, *ARITHMETIC):
        raise unknown("arithmetic", str(arithmetic), ARITHMETIC)
    if dsink is not None and not listed(how.get("sinks")):
        raise ConfigError("dsink came without sinks; give sinks=")
    if dbias is not None and not calling.is_bias(how.get("attn_mask")):
        raise ConfigError("dbias came without a bias; give attn_mask=, numbers that are added to the scores")
    if dout is None and (gradients or how.get("dlse") is not None):
        raise ConfigError("gradients need dout, the gradient of out; give dout=")
    if callable(actual) and gradients:
        names = ", ".join(gradients)
        raise ConfigError(f"{names} came beside a function whose gradients autograd gives; give one of both")
    if dout is not None and not callable(actual) and not gradients:
        raise ConfigError("dout came without a gradient to compare; give dq=, dk= or dv=, or leave dout= away")
    tensors: list[Any] = [None if x is None else in_bshd(x, layout, name) for name, x in inputs.items()]
    short = any(x is not None and x.element_size() == 1 for x in tensors) or any(x in how for x in SCALES.values())
    if short and dout is not None:
        raise ConfigError("dout came with tensors of 8 bits, whose gradients are not known; leave it away")
    if short:
        tensors[:3] = [meant(x, how.get(SCALES[name]), name, layout) for name, x in zip("qkv", tensors, strict=False)]
    assumed = {each: x for each, x in calling.defaults(actual).items() if each not in how}
    how = {**how, **assumed}
    if layout not in PACKED and (packed := next((word for word in calling.BORDERS if word in how), None)):
        raise ConfigError(f"{packed} came with layout={layout}; give (tokens, heads, dim) and layout='thd'")
    check_tensors(*tensors)
    borders = calling.borders_of(how, tensors[0].shape[1], tensors[1].shape[1], layout)
    described = calling.described(how, tensors[0], tensors[1], layout, borders, actual)
    attention = Attention(pieces=pieces, **described)
    if dbias is not None and attention.rows is not None:
        raise ConfigError("dbias is of all rows, not of one rank's; leave rows= or dbias= away")
    if callable(actual) and how.get("rows") is not None:
        raise ConfigError("rows are of what one rank returned; call the function on its ranks, and give that")
    attention.check(*tensors[:2])
    if callable(actual):
        found = calling.called(actual, layout, inputs, how, borders, attention.dlse)
    else:
        found = calling.results(actual)
    found |= named
    if "cu_seqlens_padded" in how:
        found = without_padding(found, listed(how.get("rows", range(tensors[0].shape[1]))) or [], described["rows"])
    must_be_beside("q", tensors[0], **found)
    if callable(actual) and attention.dlse is not None:  # what autograd could give it
        attention = replace(attention, dlse=attention.dlse.to(found["lse"].dtype))
    tensors, found, attention = calling.with_float64(tensors, found, attention)
    stored: dict[str, Any] = {f"stored_{name}": word_of(found[name].dtype) for name in OWN_SHAPE if name in found}
    result = found["out"] if short else tensors[0]
    rounding = policy_of(policy, word_of(result.dtype), pieces, stored.pop("stored_lse", None))
    if short:
        rounding = eight_bits(rounding, str(v.dtype).removeprefix("torch."))
    truth = exact(*tensors, attention=attention, rounding=rounding, **stored)  # type: ignore[misc]
    wrong = _wrong(found, truth, layout)
    source = SOURCE[policy].format(dtype=truth.policy.dtype)
    if short and rounding.weights != rounding.dtype:
        source += f", and weights once in {rounding.weights}"
    if wrong and policy == "loosest" and not short:
        beyond_it = {line.split()[0] for line in wrong}
        is_factor = _is_factor(beyond_it & {"dq", "dk"}, found, truth, layout)
        again = iter(()) if is_factor else others(beyond_it, tensors, truth, attention, **stored)
        if any(not _wrong(found, each, layout) for each in again):
            wrong = []
    if wrong and arithmetic != "float32":
        beyond_it = {line.split()[0] for line in wrong}
        of_wrong = {name: in_bshd(x, layout, name) for name, x in found.items() if name in beyond_it}
        first = wrong[0]
        for products, coarser, drift in in_coarser_products(of_wrong, tensors, truth, attention, **stored):
            source = f"rounding alone of what {(words := f'computes {PRODUCTS[products]}')}"
            wrong = _wrong({name: found[name] for name in of_wrong}, coarser, layout, drift)
            if not wrong:
                break
        if not wrong and arithmetic is None:
            what = getattr(actual, "__name__", "this attention")
            warnings.warn(f"{what} {words}; arithmetic='float32' refuses it: {first}", stacklevel=3)
    if wrong:
        keys, heads = k.shape[1], q.shape[2]
        wrong += [f"{each}={x} was assumed: the function's own default" for each, x in assumed.items()]
        if more := calling.untold(actual, how) if callable(actual) else []:
            wrong.append(f"the function was not told {', '.join(more)}: it has no parameter of that name")
        of_lse = any(line.startswith("lse") for line in wrong)
        if of_lse and not _judge("lse", found["lse"] * math.log(2), truth, layout):
            wrong.append("lse is in base 2: times ln 2 it is right")
        if truth.policy.dtype == "float64":  # a function that computes in float32 inside promises no more
            single = policy_of(policy, "float32", pieces)
            inside = exact(*tensors, attention=attention, rounding=single, **stored)  # type: ignore[misc]
            inside = replace(inside, policy=truth.policy)
            least = DRIFT[4] * unit("float32")
            if not _wrong(found, inside, layout, least):
                wrong.append("every error is as small as float32 makes it: right for what computes in float32 inside")
        wrong += _of_another(found, tensors, attention, rounding, layout, stored, wrong[0].startswith("out"), how)
        wrong.append(f"limits: {source}; beyond them by chance: {ALARM:g} a tensor")
        grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
        if attention.rows is None and grouped and (ranks := torch.distributed.get_world_size()) > 1:
            wrong.append(f"q, k and v were read as all tokens on each of {ranks} ranks: of one rank's tokens say rows=")
        if layout == "bshd" and keys < heads:
            wrong.append(f"k was read as {keys} tokens, q as {heads} heads: of (B, H, S, D) say layout='bhsd'")
        raise AssertionError("\n".join(wrong))
    came = {name: in_bshd(x, layout, name) for name, x in found.items()}
    exactly = {name: _exact(name, x, truth) for name, x in came.items()}
    references = {name: reference for name, (reference, _) in exactly.items()}
    if unlimited := [name for name, (_, bound) in exactly.items() if _is_mostly_unlimited(bound)]:
        why = f"with these inputs rounding in {truth.policy.dtype} has no limit for most elements"
        warnings.warn(f"{', '.join(unlimited)} cannot be judged: {why}; give smaller scores", stacklevel=3)
    offs = {name: float((x - references[name]).norm()) for name, x in came.items()}
    norms = {name: float(reference.norm()) for name, reference in references.items()}
    return {name: offs[name] / norm if norm else 0.0 for name, norm in norms.items()}


def _wrong(found: Mapping[str, Tensor], truth: Exact, layout: str, least_drift: float = 0.0) -> list[str]:
    """Return a line for each tensor that is wrong. least_drift: as in `limits`."""
    return [line for name, x in found.items() for line in _judge(name, x, truth, layout, least_drift)]


def _judge(name: str, x: Tensor, truth: Exact, layout: str, least_drift: float = 0.0) -> list[str]:
    """Return one line of what is wrong with a tensor, or none. least_drift: as in `limits`."""
    given, x = tuple(x.shape), in_bshd(x, layout, name)
    reference, bound = _exact(name, x, truth)
    if x.shape != reference.shape:
        if name == "max_logit":
            allowed = f"(H,), (B, H) or (B, H, Sq) of {tuple(truth.reference.max_logit.shape)}"
            return [f"max_logit has the shape {given}, expected {allowed}"]
        expected, words = (in_layout(each, layout, name) for each in (reference.shape, WORDS.get(name, PLACES)))
        return [f"{name} has the shape {given}, expected {expected} ({', '.join(words)})"]
    word = word_of(x.dtype) if name in OWN_SHAPE else truth.policy.dtype
    if word_of(x.dtype) != word:
        return [f"{name} came as {word_of(x.dtype)}, expected {word}"]
    by_row = name not in ("lse", "dsink", "max_logit")
    found = beyond(x, reference, limits(bound, reference, word, by_row, least_drift))
    return [_described(name, found, x, reference, layout, truth.tokens)] if found else []


def _is_mostly_unlimited(bound: Bound) -> bool:
    """Return whether more than half of a tensor's elements have an infinite limit: no error of theirs is found."""
    return bool(bound.likely(ALARM).isinf().double().mean() > 1 / 2)  # of no elements the mean is NaN


def _is_factor(names: Collection[str], found: Mapping[str, Tensor], truth: Exact, layout: str) -> bool:
    """Whether one of these tensors is a factor times its reference, which no error of rows makes."""
    each = [(in_bshd(found[name], layout, name), *_exact(name, found[name], truth)) for name in names]
    alike = [(x, exact, limits(bound, exact, truth.policy.dtype)) for x, exact, bound in each if x.shape == exact.shape]
    return any(way.what == "gain" for one in alike for way in beyond(*one))


def _exact(name: str, x: Tensor, truth: Exact) -> tuple[Tensor, Bound]:
    """Return the reference and the bound of a tensor that came as x."""
    reference, bound = getattr(truth.reference, name), truth.bounds[name]
    return of_largest(reference, bound, x, word_of(x.dtype)) if name == "max_logit" else (reference, bound)


def _described(
    name: str, found: list[Beyond], x: Tensor, reference: Tensor, layout: str, tokens: Tensor | None
) -> str:  # fmt: skip
    """Return the worst way in words, then where the worst element is. tokens: positions, of a rank's own rows."""
    worst = max(found, key=lambda each: each.times)
    size = (x - reference).nan_to_num_(nan=torch.inf).abs_()
    index = worst.place
    if len(index) < size.dim():
        flat = int((size[index] if index else size).argmax())
        index += tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), size[index].shape))
    words = WORDS.get(name, PLACES)
    named = zip(words, index, strict=False)
    own = {} if tokens is None else dict(enumerate(tokens.tolist()))
    where = ", ".join(f"{word} {own.get(at, at) if word == 'token' else at}" for word, at in named if word)
    what = {
        "element": "an element's error is {error:.3g}, allowed {limit:.3g}",
        "row": "a row's root mean square error is {error:.3g}, allowed {limit:.3g}",
        "relative": "the relative error is {error:.3g}, allowed {limit:.3g}",
        "gain": "it is a factor times the reference, off by {error:.3g}, allowed {limit:.3g}",
        "is not finite": "it is not finite where the reference is",
    }[worst.what].format(error=worst.error, limit=worst.limit)
    what = what if x.any() else "it is zero everywhere"
    value, right = float(x[index].double()), float(reference[index])
    return f"{name} is wrong: {what} ({worst.times:.3g} times); {where} is {value:.6g} and should be {right:.6g}"


def _of_another(
    found: Mapping[str, Tensor], tensors: list[Any], attention: Attention, rounding: Policy, layout: str,
    stored: Mapping[str, Any], is_wrong: bool, how: Mapping[str, Any],
) -> list[str]:  # fmt: skip
    """Return which other mask or scale out is right for, in a line, if it is for one; or that all gradients are those
    of out alone. is_wrong: whether out is."""
    if attention.dlse is not None:
        truth = exact(*tensors, attention=replace(attention, dlse=None), rounding=rounding, **stored)  # type: ignore[misc]
        if not _wrong(found, truth, layout):
            return ["all of it is right without dlse: the gradient through lse is ignored"]
    own, causal, others = tensors[0].shape[-1] ** -0.5, attention.causal, {}
    if causal == how.get("causal", False):  # else it is in the mask
        others[f"causal={not causal}"] = replace(attention, causal=not causal)
    if attention.softmax_scale not in (None, own):
        others["softmax_scale=D**-0.5"] = replace(attention, softmax_scale=None)
    others["softmax_scale=1"] = replace(attention, softmax_scale=1.0)
    for word, other in others.items() if is_wrong else ():
        try:
            truth = exact(*tensors, attention=other, rounding=rounding, **stored)  # type: ignore[misc]
        except ConfigError:  # a row that sees no key
            continue
        if not _judge("out", found["out"], truth, layout):
            return [f"out is that of {word}: give it, if that is meant"]
    return []
