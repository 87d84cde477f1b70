"""Run a user's function again on a part of what was captured, and name its results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from accuracy.core.errors import ConfigError
from accuracy.core.plugins import load_function
from accuracy.core.recording import Facts
from accuracy.live.call_on_disk import Call
from accuracy.live.functions import KNOWN
from accuracy.runtime.arguments import parameters, takes_any_word
from accuracy.runtime.layout import arranged, canonical, lse_in

CAUSAL, SCALE = ("causal", "is_causal"), ("softmax_scale", "scale", "sm_scale", "scaling")
MASK, LENGTHS = ("attn_mask", "attention_mask", "mask"), ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k")


@dataclass(frozen=True)
class Rerun:
    """name: `package.module:function` or `FILE.py:function`, called as fn(q, k, v, *, causal, softmax_scale, ...), each
    word only where it has it; layout: of its tensors."""

    name: str
    layout: str = "bshd"

    @property
    def function(self) -> Callable[..., Any]:
        """Loaded once. Raises ConfigError."""
        try:
            return load_function(self.name).function
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def arguments(self, call: Call) -> dict[str, Any]:
        """The words of a call beside q, k and v. Raises ConfigError where the function has none for what is asked."""
        names, facts = _parameters(self.function, call.facts), call.facts
        if names is None:
            names = next((each.parameters for each in KNOWN if each.path == self.name), ())
        words: dict[str, Any] = {**dict.fromkeys(CAUSAL, facts.causal), **dict.fromkeys(SCALE, facts.scale)}
        words |= {"group": None, "enable_gqa": True, "softcap": facts.softcap or 0.0, "dropout_p": 0.0}
        if facts.documents:
            ends = torch.tensor([0, *facts.documents], device=call.tensors["q"].device).cumsum(0).int()
            words |= dict.fromkeys(LENGTHS, ends)
            words |= dict.fromkeys(("max_seqlen", "max_seqlen_q", "max_seqlen_k"), max(facts.documents))
        if facts.window:
            words["window_size"] = tuple(-1 if x is None else x for x in facts.window)
        if "mask" in call.tensors:
            words |= dict.fromkeys(MASK, call.tensors["mask"])
        needed = {"a mask": (MASK, facts.mask), "documents": (LENGTHS, facts.documents),
                  "a window": (("window_size",), facts.window), "causal": (CAUSAL, facts.causal)}  # fmt: skip
        for what, (any_of, present) in needed.items():
            if present and not {*any_of} & {*names}:
                raise ConfigError(f"fn={self.name} takes no {' or '.join(any_of)}, but the capture has {what}")
        return {name: words[name] for name in names if name in words}

    def results(self, call: Call) -> Call:
        """The call with what the function returns, and the gradients where it has any; arguments as `call` has them."""
        given = [arranged(call.tensors[name], self.layout).detach().requires_grad_() for name in "qkv"]
        returned = self.function(*given, **self.arguments(call))
        parts = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        out = parts[0]
        named = {"out": canonical(out, self.layout).detach()}
        lse = lse_in(parts[1:], call.tensors["q"])
        if lse is not None:
            named["lse"] = lse.detach().transpose(1, 2)
        if "dout" in call.tensors and out.requires_grad:
            gradients = torch.autograd.grad(out, given, arranged(call.tensors["dout"], self.layout).to(out.dtype))
            named |= {f"d{name}": canonical(x, self.layout) for name, x in zip("qkv", gradients, strict=True)}
        return Call(call.facts, call.tensors | named)


def _parameters(function: Callable[..., Any], facts: Facts) -> tuple[str, ...] | None:
    known = parameters(function)
    if known is not None and takes_any_word(known):
        return tuple(dict.fromkeys((*known, *facts.words)))  # what the captured call gave
    return None if known is None else tuple(known)
