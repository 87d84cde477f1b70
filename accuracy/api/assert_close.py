"""For a repository with one kernel and no ranks: `assert_close(out, q, k, v)` instead of a tolerance. Needs torch only.

accuracy.assert_close(my_attention, q, k, v, dout=dout, causal=True)
accuracy.assert_close(out, q, k, v, causal=True, lse=lse, dout=dout, dq=q.grad, dk=k.grad, dv=v.grad)
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from accuracy.api.bounds import HOW, Attention, Exact, check_tensors, exact, in_four, word_of
from accuracy.api.tf32 import DRIFT, in_tf32
from accuracy.bound.limits import ALARM, Beyond, beyond, limits
from accuracy.core.errors import ConfigError, entry, unknown
from accuracy.runtime.arguments import NAMES, parameters, takes_any_word

FORWARD, GRADIENTS = ("out", "lse"), ("dq", "dk", "dv", "dsink", "dbias")
OWN_SHAPE = ("lse", "dsink", "dbias")
"""Tensors that are in no layout of tokens, and may have another dtype."""
PLACES = {"bshd": ("batch", "token", "head", "dim"), "bhsd": ("batch", "head", "token", "dim")}
WORDS = {
    "lse": ("batch", "head", "token"), "dsink": ("", "", "head"), "dbias": ("batch", "head", "query", "key"),
}  # fmt: skip
ARITHMETIC = ("float32", "tf32")
SOURCE = {
    "loosest": "rounding alone where scores, weights, lse and partial results are stored in {dtype}",
    "kernel": "rounding alone of a kernel that computes in float32 and rounds weights to {dtype}",
}


@entry(HOW)
def assert_close(
    actual: Tensor | Sequence[Tensor] | Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, *,
    dout: Tensor | None = None, lse: Tensor | None = None, dq: Tensor | None = None, dk: Tensor | None = None,
    dv: Tensor | None = None, dsink: Tensor | None = None, dbias: Tensor | None = None,
    layout: str = "bshd", policy: str = "loosest", arithmetic: str | None = None,
    pieces: int = 1, **how: Any,
) -> dict[str, float]:  # fmt: skip
    """Compare attention with float64 on the same rounded inputs; the limits are those of rounding, for these inputs.

    actual: out, (out, lse), or a function, called once as `actual(q, k, v)`, with causal and softmax_scale (is_causal,
    scale, sm_scale), and with what else of `how` is given, where these are parameters of its own; its gradients come
    from autograd where dout is given. q, dout and out: (B, Sq, H, D), k, v: (B, S, Hk, D), all of one dtype; with
    layout="bhsd" (B, H, S, D). lse: (B, H, Sq), natural log, any dtype. dq, dk, dv: gradients of (out * dout).sum();
    dsink: (H,), that of sinks, any dtype, which autograd gives where a function gets sinks as a tensor; dbias: that of
    a bias given as attn_mask, in its shape, which autograd gives where the bias wants a gradient.
    policy: `loosest`, what anybody's function may do and still be called rounding, or `kernel`, a fused kernel's
    roundings. arithmetic: of float32's products. A function that computes them in TF32, as tensor cores do, passes with
    a UserWarning that says so; `float32` refuses it, `tf32` lets it pass in silence. pieces: ranks or chunks whose
    partial results are merged. how: causal=False, softmax_scale=D**-0.5, or what a function has for their defaults in
    its signature; window, documents, softcap, sinks, attn_mask, dlse (of a loss that lse is part of, too), as in
    `accuracy.bounds`; a function gets attn_mask by this name, or as attn_bias, bias or mask. rows: positions of the
    tokens that out, lse, dq, dk and dv are of, where they are one rank's; q, k, v, dout and dlse are always of the
    whole sequence.

    Returns each compared tensor's relative error. Raises AssertionError with the tensor, the worst place, by how much,
    and where the limit is from; ConfigError, a ValueError, for a wrong argument.
    """
    __tracebackhide__ = True
    inputs = {"q": q, "k": k, "v": v, "dout": dout}
    returned = {"lse": lse, "dq": dq, "dk": dk, "dv": dv, "dsink": dsink, "dbias": dbias}
    named = {name: x for name, x in returned.items() if x is not None}
    gradients = [name for name in GRADIENTS if name in named]
    if layout not in PLACES:
        raise unknown("layout", layout, PLACES)
    if policy not in SOURCE:
        raise unknown("policy", policy, SOURCE)
    if arithmetic not in (None, *ARITHMETIC):
        raise unknown("arithmetic", str(arithmetic), ARITHMETIC)
    if dsink is not None and not len(how.get("sinks", ())):
        raise ConfigError("dsink came without sinks; give sinks=")
    if dbias is not None and not _is_bias(how.get("attn_mask")):
        raise ConfigError("dbias came without a bias; give attn_mask=, numbers that are added to the scores")
    if dout is None and (gradients or how.get("dlse") is not None):
        raise ConfigError("gradients need dout, the gradient of out; give dout=")
    if callable(actual) and gradients:
        names = ", ".join(gradients)
        raise ConfigError(f"{names} came beside a function whose gradients autograd gives; give one of both")
    if dout is not None and not callable(actual) and not gradients:
        raise ConfigError("dout came without a gradient to compare; give dq=, dk= or dv=, or leave dout= away")
    tensors: list[Any] = [None if x is None else _bshd(x, layout, name) for name, x in inputs.items()]
    assumed = {} if not callable(actual) else {each: x for each, x in _defaults(actual).items() if each not in how}
    how = {**how, **assumed}
    attention = Attention(pieces=pieces, **how)
    if dbias is not None and attention.rows is not None:
        raise ConfigError("dbias is of all rows, not of one rank's; leave rows= or dbias= away")
    if callable(actual) and attention.rows is not None:
        raise ConfigError("rows are of what one rank returned; call the function on its ranks, and give that")
    check_tensors(*tensors)
    attention.check(*tensors[:2])
    found = _called(actual, _taken(actual, q, how), q, k, v, dout, how) if callable(actual) else _returned(actual)
    found |= named
    if callable(actual) and attention.dlse is not None:  # what autograd could give it
        attention = replace(attention, dlse=attention.dlse.to(found["lse"].dtype))
    stored: dict[str, Any] = {f"stored_{name}": word_of(found[name].dtype) for name in OWN_SHAPE if name in found}
    truth = exact(*tensors, attention=attention, policy=policy, **stored)  # type: ignore[misc]
    wrong = [line for name, x in found.items() for line in _judge(name, x, truth, layout)]
    source = SOURCE[policy].format(dtype=truth.policy.dtype)
    if wrong and arithmetic != "float32" and _bshd(found["out"], layout, "out").shape == truth.reference.out.shape:
        known = in_tf32(_bshd(found["out"], layout, "out"), tuple(tensors), truth, attention, **stored)
        if known is not None:
            words, tf32 = f"computes float32 in TF32, its operands {known[0]} 11 bits", known[1]
            own, source = wrong, f"rounding alone of what {words}"
            wrong = [line for name, x in found.items() for line in _judge(name, x, tf32, layout, DRIFT)]
            if not wrong and arithmetic is None:
                what = getattr(actual, "__name__", "this attention")
                warnings.warn(f"{what} {words}; arithmetic='float32' refuses it: {own[0]}", stacklevel=3)
    if wrong:
        keys, heads = k.shape[1], q.shape[2]
        wrong += [f"{each}={x} was assumed: the function's own default" for each, x in assumed.items()]
        wrong += _of_another(found, tensors, attention, policy, layout, stored)
        wrong.append(f"limits: {source}; beyond them by chance: {ALARM:g} a tensor")
        if layout == "bshd" and keys < heads:
            wrong.append(f"k was read as {keys} tokens, q as {heads} heads: of (B, H, S, D) say layout='bhsd'")
        raise AssertionError("\n".join(wrong))
    references = {name: getattr(truth.reference, name) for name in found}
    offs = {name: float((_bshd(x, layout, name).double() - references[name]).norm()) for name, x in found.items()}
    norms = {name: float(reference.norm()) for name, reference in references.items()}
    return {name: offs[name] / norm if norm else 0.0 for name, norm in norms.items()}


def _judge(name: str, x: Tensor, truth: Exact, layout: str, least_drift: float = 0.0) -> list[str]:
    """Return one line of what is wrong with a tensor, or none. least_drift: as in `limits`."""
    reference, bound = getattr(truth.reference, name), truth.bounds[name]
    x = _bshd(x, layout, name)
    if x.shape != reference.shape:
        words = ", ".join(WORDS.get(name, PLACES["bshd"]))
        return [f"{name} has the shape {tuple(x.shape)}, expected {tuple(reference.shape)} ({words})"]
    if x.device != reference.device:
        return [f"{name} came on {x.device}, expected {reference.device}"]
    word = word_of(x.dtype) if name in OWN_SHAPE else truth.policy.dtype
    if word_of(x.dtype) != word:
        return [f"{name} came as {word_of(x.dtype)}, expected {word}"]
    by_row = name not in ("lse", "dsink")
    found = beyond(x.double(), reference, limits(bound, reference, word, by_row, least_drift))
    return [_described(name, found, x, reference, layout, truth.tokens)] if found else []


def _described(
    name: str, found: list[Beyond], x: Tensor, reference: Tensor, layout: str, tokens: Tensor | None
) -> str:  # fmt: skip
    """Return the worst way in words, then where the worst element is. tokens: positions, of a rank's own rows."""
    worst = max(found, key=lambda each: each.times)
    size = (x.double() - reference).nan_to_num(nan=torch.inf).abs()
    index = worst.place
    if len(index) < size.dim():
        flat = int((size[index] if index else size).argmax())
        index += tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), size[index].shape))
    words = WORDS.get(name, PLACES["bshd"])
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
    value, right = float(x[index].double()), float(reference[index])
    return f"{name} is wrong: {what} ({worst.times:.3g} times); {where} is {value:.6g} and should be {right:.6g}"


def _defaults(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the mask and the scale that a function has by its signature, where it says one."""
    known = parameters(fn) or {}
    kinds = {"causal": bool, "softmax_scale": float}
    found = {word: known[name].default for word in kinds for name in NAMES[word] if name in known}
    return {word: value for word, value in found.items() if type(value) is kinds[word]}


def _of_another(
    found: Mapping[str, Tensor], tensors: list[Any], attention: Attention, policy: str, layout: str,
    stored: Mapping[str, Any],
) -> list[str]:  # fmt: skip
    """Return which other mask or scale out is right for, in a line, if it is for one; or that all gradients are those
    of out alone."""
    if attention.dlse is not None:
        truth = exact(*tensors, attention=replace(attention, dlse=None), policy=policy, **stored)  # type: ignore[misc]
        if not [line for name, x in found.items() for line in _judge(name, x, truth, layout)]:
            return ["all of it is right without dlse: the gradient through lse is ignored"]
    own = tensors[0].shape[-1] ** -0.5
    others = {f"causal={not attention.causal}": replace(attention, causal=not attention.causal)}
    if attention.softmax_scale not in (None, own):
        others["softmax_scale=D**-0.5"] = replace(attention, softmax_scale=None)
    others["softmax_scale=1"] = replace(attention, softmax_scale=1.0)
    for word, other in others.items():
        try:
            truth = exact(*tensors, attention=other, policy=policy, **stored)  # type: ignore[misc]
        except ConfigError:  # a row that sees no key
            continue
        if not _judge("out", found["out"], truth, layout):
            return [f"out is that of {word}: give it, if that is meant"]
    return []


def _taken(fn: Callable[..., Any], q: Tensor, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of `how` the function has a parameter for, by its own names; defaults only where it has none."""
    known = parameters(fn) or {}
    how = {word: value for word, value in how.items() if word != "dlse"}
    values = {"causal": False, "softmax_scale": q.shape[-1] ** -0.5, "group": None, **how}
    found = {name: (word, known[name]) for word, names in NAMES.items() for name in names if name in known}
    taken = {name: values[word] for name, (word, each) in found.items() if word in how or each.default is each.empty}
    renamed, any_word = {word for word, _ in found.values()}, takes_any_word(known)
    same = {word: value for word, value in how.items() if word not in renamed and (word in known or any_word)}
    return same | taken


def _is_bias(mask: Any) -> bool:
    return isinstance(mask, Tensor) and mask.is_floating_point()


def _called(
    fn: Callable[..., Any], words: Mapping[str, Any], q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None,
    how: Mapping[str, Any],
) -> dict[str, Tensor]:  # fmt: skip
    """Return what a function gives, and the gradients of what it was given. words: by its own names."""
    given: dict[str, Tensor] = {"q": q, "k": k, "v": v}
    own = {word: next((name for name in NAMES[word] if name in words), "") for word in ("sinks", "attn_mask")}
    if own["sinks"] and _is_bias(words[own["sinks"]]):
        given["sinks"] = words[own["sinks"]]
    if own["attn_mask"] and _is_bias(how["attn_mask"]) and how["attn_mask"].requires_grad:
        given["attn_mask"] = how["attn_mask"]
    leaves = {name: x.detach().clone().requires_grad_(dout is not None) for name, x in given.items()}
    words = dict(words) | {own[name]: leaves[name] for name in own if name in leaves}
    with torch.enable_grad():
        found = _returned(fn(leaves["q"], leaves["k"], leaves["v"], **words))
    if written := [name for name, x in leaves.items() if x._version]:
        raise AssertionError(f"the function wrote to its inputs {', '.join(written)}; it must leave them as they are")
    if dout is None:
        return found
    if not found["out"].requires_grad:
        raise ConfigError("the function's out has no gradient; leave dout= away, or compare dq=, dk=, dv= of your own")
    losses = {"out": dout}
    if (dlse := how.get("dlse")) is not None:
        if "lse" not in found:
            raise ConfigError(
                "dlse came, and the function returns no lse; let it return (out, lse), or leave dlse away"
            )
        if found["lse"].requires_grad:  # else it has no gradient, which is for the limits to say
            losses["lse"] = dlse.to(found["lse"].dtype)
    gradients = torch.autograd.grad([found[name] for name in losses], [*leaves.values()], [*losses.values()],
                                    allow_unused=True)  # fmt: skip
    names = {"q": "dq", "k": "dk", "v": "dv", "sinks": "dsink", "attn_mask": "dbias"}
    filled = {
        names[name]: torch.zeros_like(x) if each is None else each
        for (name, x), each in zip(leaves.items(), gradients, strict=True)
    }
    return {name: x.detach() for name, x in found.items()} | filled


def _returned(result: Any) -> dict[str, Tensor]:
    values = (result,) if isinstance(result, Tensor) else result
    if isinstance(values, Mapping) or not isinstance(values, Sequence) or not 1 <= len(values) <= 2:
        raise ConfigError(f"{type(result).__name__} is no out; give out, (out, lse), or a function that returns them")
    found = {name: x for name, x in zip(FORWARD, values, strict=False) if x is not None}
    if not all(isinstance(x, Tensor) for x in found.values()) or "out" not in found:
        raise ConfigError("out and lse must be tensors")
    return found


def _bshd(x: Any, layout: str, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise ConfigError(f"{name} is a {type(x).__name__}, expected a tensor")
    if name == "dsink":
        return x.detach().reshape(1, 1, -1)
    if name == "dbias":
        return in_four(x)
    return x.detach() if layout == "bshd" or name == "lse" else x.detach().transpose(1, 2)
