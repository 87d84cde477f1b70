"""By which names a function of a user's takes the mask, the scale and the process group."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

NAMES = {
    "causal": ("causal", "is_causal"),
    "softmax_scale": ("softmax_scale", "scale", "sm_scale"),
    "group": ("group",),
}


def parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """None: torch's own functions have no signature."""
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return None


def takes_any_word(known: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a parameter takes words that have none of their own."""
    return any(each.kind is each.VAR_KEYWORD for each in known.values())


def named(fn: Callable[..., Any], how: Mapping[str, Any]) -> dict[str, Any]:
    """`how` by the function's own names; without `group` where the function has no parameter for it."""
    known = parameters(fn)
    if known is None or takes_any_word(known):
        return dict(how)
    names = {word: next((name for name in NAMES.get(word, ()) if name in known), word) for word in how}
    return {names[word]: value for word, value in how.items() if word != "group" or names[word] in known}
