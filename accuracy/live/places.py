"""Where is a function called from? Every name that is bound to it, so that `from flash_attn import flash_attn_func` in
somebody's module is hooked too; and which layer of a model a call stands in.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

OURS = ("accuracy.", "torch.")
HOMES = ("torch.nn.functional", "torch.nn.attention.flex_attention")


def bound(function: Callable[..., Any], model: nn.Module | None) -> Iterator[tuple[dict[str, Any] | object, str]]:
    """(holder, name) of each: modules' globals, the model's modules and their classes. Not this package's own, and of
    torch's only where users call it."""
    for name, module in list(sys.modules.items()):
        if name.startswith(OURS) and name not in HOMES:
            continue
        yield from ((module, key) for key in _keys(module, function))
    for layer in model.modules() if model is not None else ():
        yield from ((layer, key) for key in _keys(layer, function))
    for kind in {type(layer) for layer in model.modules()} if model is not None else ():
        if not kind.__module__.startswith(OURS):
            yield from ((kind, key) for key, x in list(vars(kind).items()) if x is function)


def registries() -> list[dict[str, Any]]:
    """Hugging Face's registries of attention functions, the models' own among them; none where nothing imported it."""
    kind = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
    if kind is None:
        return []
    own = {
        id(x._local_mapping): x._local_mapping
        for name, module in list(sys.modules.items()) if name.startswith("transformers.")
        for x in list(vars(module).values()) if isinstance(x, kind)
    }  # fmt: skip
    return [kind._global_mapping, *own.values()]


def eager(model: nn.Module | None) -> Iterator[Any]:
    """The modules whose `eager_attention_forward` a model of Hugging Face calls."""
    for name in sorted({type(layer).__module__ for layer in model.modules()}) if model is not None else ():
        module = sys.modules.get(name)
        if name.startswith("transformers") and callable(getattr(module, "eager_attention_forward", None)):
            yield module


def layer_of(names: Mapping[int, str], arguments: Mapping[str, Any]) -> str:
    """The name of the innermost module of the model in whose `forward` this call is made; "" where there is none."""
    given = names.get(id(arguments.get("module")))
    frame = sys._getframe(1)
    while given is None and frame is not None:
        given = names.get(id(frame.f_locals.get("self")))
        frame = frame.f_back  # type: ignore[assignment]
    return given or ""


def _keys(holder: object, function: Callable[..., Any]) -> list[str]:
    try:
        return [key for key, x in list(vars(holder).items()) if x is function]
    except Exception:  # a module that makes its names up
        return []
