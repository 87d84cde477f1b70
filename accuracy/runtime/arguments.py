"""By which names a function of a user's takes the mask, the scale and the process group."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

NAMES = {
    "causal": ("causal", "is_causal"),
    "softmax_scale": ("softmax_scale", "scale", "sm_scale"),
    "group": ("group",),
}
OPTIONAL = ("softmax_scale", "group")
"""A function without the first scales by D^-0.5."""
MODULE = "torch.nn.modules.module", "Module"


def parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """None: torch's own functions have no signature."""
    try:
        return _signature(fn).parameters
    except (TypeError, ValueError):
        return None


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    """Of a torch.nn.Module its forward's: its own call takes any word."""
    is_module = any((each.__module__, each.__name__) == MODULE for each in type(fn).__mro__)
    return inspect.signature(fn.forward if is_module else fn)  # type: ignore[attr-defined]


def takes_any_word(known: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a parameter takes words that have none of their own."""
    return any(each.kind is each.VAR_KEYWORD for each in known.values())


def takes(fn: Callable[..., Any], word: str) -> bool:
    """Whether a function has a parameter for one of `NAMES`."""
    known = parameters(fn)
    return known is None or takes_any_word(known) or any(name in known for name in NAMES[word])


def named(fn: Callable[..., Any], how: Mapping[str, Any]) -> dict[str, Any]:
    """`how` by the function's own names; without the group and the scale where the function has no parameter for it."""
    known = parameters(fn)
    if known is None or takes_any_word(known):
        return dict(how)
    names = {word: next((name for name in NAMES.get(word, ()) if name in known), word) for word in how}
    return {names[word]: value for word, value in how.items() if word not in OPTIONAL or names[word] in known}


def uncallable(fn: Callable[..., Any], tensors: int, words: Iterable[str]) -> str | None:
    """Why a function cannot be called with so many tensors, the words of its layout, causal, softmax_scale and group;
    None: it can, or has no signature that says."""
    known = parameters(fn)
    if known is None:
        return None
    if not takes(fn, "causal"):
        return "has no parameter causal or is_causal, so nobody can tell it the mask; add one"
    try:
        given = {**dict.fromkeys(words), **named(fn, dict.fromkeys(NAMES))}
        _signature(fn).bind(*[None] * tensors, **given)
    except TypeError as error:
        return (
            f"cannot be called with {tensors} tensors and {', '.join(given)}: {error}; wrap it in a function that can"
        )
    return None
