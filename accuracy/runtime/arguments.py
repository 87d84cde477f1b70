"""By which names a user's function takes the mask, the scale, the process group and the borders of packed sequences."""

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

NAMES = {
    "causal": ("causal", "is_causal"),
    "softmax_scale": ("softmax_scale", "scale", "sm_scale"),
    "group": ("group", "process_group", "cp_group", "pg"),
    "grouped": ("enable_gqa",),
    "sinks": ("sinks", "s_aux", "sink", "learnable_sink"),
    "attn_mask": ("attn_mask", "attn_bias", "bias", "mask"),
    "window": ("window_size", "window", "sliding_window"),
    "softcap": ("softcap",),
    "cu_seqlens": ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_kv"),
    "max_seqlen": ("max_seqlen", "max_seqlen_q", "max_seqlen_k", "max_seqlen_kv"),
    "cu_seqlens_padded": tuple(f"cu_seqlens{of}_padded" for of in ("", "_q", "_k", "_kv")),
}
"""What we call an argument, and the field's names for it. A function gets it by the first name that it has."""
EVERY_NAME = ("cu_seqlens", "max_seqlen", "cu_seqlens_padded")
"""These a function gets by every name that it has: queries and keys begin and end alike."""
OF_KEYS = {"cu_seqlens": ("cu_seqlens_k", "cu_seqlens_kv"), "max_seqlen": ("max_seqlen_k", "max_seqlen_kv")}
"""An argument's names that tell of keys alone: they get other values where keys are packed otherwise than queries."""
OF_SLICES = ("local_k_slice", "heads_k_stride")
"""A function gets these only by its own parameters: a rank of it has a slice of packed sequences."""
OWN_ALONE = ("grouped", "cu_seqlens_padded", *OF_SLICES)
"""A function that takes any word does not get these by that."""
OPTIONAL = ("causal", "softmax_scale", "group", "grouped")
"""A function without the first has one mask, one without the second scales by D^-0.5."""
OF_PROBLEMS = ("sinks", "attn_mask")
"""A function gets these only where the problem has sinks, or a mask of the caller's."""
WHERE_GIVEN = (*OF_PROBLEMS, "softcap")
"""A function that requires one of these can be called only where the problem has it."""
WINDOWS = ("behind", "keys", "pair")
"""How a function is told a window: the keys on either side of a query's own, all that it sees, or a pair."""
MODULE = "torch.nn.modules.module", "Module"


def _scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Its parameters are those of torch's builtin function of this name, which has no signature."""


BUILTINS = {"scaled_dot_product_attention": _scaled_dot_product_attention}


def plain(fn: Any) -> Any:
    """Return the function inside functools.partial and torch.compile."""
    while inner := fn.func if isinstance(fn, partial) else getattr(fn, "_torchdynamo_orig_callable", None):
        fn = inner
    return fn


def parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a function by name, or None if it has no signature."""
    try:
        return _signature(fn).parameters
    except (TypeError, ValueError):
        return None


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    return (_known_signature if isinstance(fn, Hashable) else _read_signature)(fn)


@lru_cache(maxsize=8)  # a call of a function asks 25 times
def _known_signature(fn: Callable[..., Any]) -> inspect.Signature:
    return _read_signature(fn)


def _read_signature(fn: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature; a torch.nn.Module's is that of its forward, as its own call takes any word."""
    is_module = any((each.__module__, each.__name__) == MODULE for each in type(fn).__mro__)
    try:
        return inspect.signature(fn.forward if is_module else fn)  # type: ignore[attr-defined]
    except ValueError:
        own = BUILTINS.get(getattr(plain(fn), "__name__", ""))
        if own is None or not inspect.isbuiltin(plain(fn)):
            raise
        return inspect.signature(partial(own, *fn.args, **fn.keywords) if isinstance(fn, partial) else own)


def takes_any_word(known: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether a parameter takes words that have no parameter of their own."""
    return any(each.kind is each.VAR_KEYWORD for each in known.values())


def takes(fn: Callable[..., Any], word: str) -> bool:
    """Return whether a function can be given the argument that `NAMES` calls `word`."""
    known = parameters(fn)
    return known is None or takes_any_word(known) or names(fn, word)


def names(fn: Callable[..., Any], word: str) -> bool:
    """Return whether a function has a parameter of its own for the argument that `NAMES` calls `word`."""
    return any(name in (parameters(fn) or {}) for name in NAMES[word])


def by_slices(fn: Callable[..., Any]) -> bool:
    """Return whether a rank of a function has a slice of packed sequences, and not a part of each."""
    return OF_SLICES[0] in (parameters(fn) or {})


def may_scale(fn: Callable[..., Any]) -> bool:
    """Return whether a function has a scale of its own where it is told None."""
    known = parameters(fn) or {}
    return any(known[name].default is None for name in NAMES["softmax_scale"] if name in known)


def window_forms(known: Mapping[str, inspect.Parameter]) -> tuple[str, ...]:
    """Return in which of `WINDOWS` a function with these parameters may want a window; empty: it takes none."""
    name = next((each for each in NAMES["window"] if each in known), "")
    default = known[name].default if name else ()
    if name == "sliding_window":  # of transformers
        return WINDOWS[1:2]
    if default is inspect.Parameter.empty:
        return WINDOWS[::-1]  # a pair first, as flash-attn's
    if isinstance(default, tuple):
        return WINDOWS[2:] if name else ()
    return WINDOWS if default is None or type(default) is int else ()


def window_told(form: str, window: int, causal: bool) -> int | tuple[int, int]:
    """Return a window as a function takes it."""
    return (window, 0 if causal else window) if form == "pair" else window + (form == "keys")


def mask_names(known: Mapping[str, Any], is_bias: bool) -> list[str]:
    """Return a function's names for a mask; of a boolean one those of a bias last, as jax.nn's has both."""
    found = [name for name in NAMES["attn_mask"] if name in known]
    return found if is_bias else sorted(found, key=lambda name: "bias" in name)


def requires(fn: Callable[..., Any], word: str) -> bool:
    """Return whether a function has such a parameter of its own, without a default."""
    known = parameters(fn) or {}
    return any(known[name].default is inspect.Parameter.empty for name in NAMES[word] if name in known)


def named(fn: Callable[..., Any], how: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments `how` by the function's own names, without the optional ones that it does not take."""
    known = parameters(fn) or {}
    any_word = takes_any_word(known)
    found: dict[str, Any] = {}
    for word, value in how.items():
        own = [name for name in NAMES.get(word, (word,)) if name in known]
        if own:
            found |= dict.fromkeys(own if word in EVERY_NAME else own[:1], value)
        elif word not in OWN_ALONE and (any_word or word not in OPTIONAL):
            found[word] = value
    return found


def uncallable(fn: Callable[..., Any], tensors: int, words: Iterable[str]) -> str | None:
    """Return why a function cannot be called with so many tensors and the words of its layout, or None if it can."""
    try:
        signature = _signature(fn)
    except (TypeError, ValueError):
        return "has no signature that says how it is called; wrap it in a function that has one"
    given = named(fn, dict.fromkeys([*OPTIONAL, *words, *filter(partial(requires, fn), (*WHERE_GIVEN, "window"))]))
    try:
        signature.bind(*[None] * tensors, **given)
    except TypeError as error:
        advice = "wrap it in a function that can"
        if names(fn, "cu_seqlens") and "cu_seqlens" not in words:
            advice = "give layout='varlen', or wrap it"
        return f"cannot be called with {tensors} tensors and {', '.join(given) or 'no words'}: {error}; {advice}"
    return None
