"""One captured call with the tensors of all its ranks joined, its reference, and what rounding may make of it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from safetensors import safe_open
from torch import Tensor

from accuracy.bound.running import bounds
from accuracy.core.dtype import FORMATS, coarser
from accuracy.core.recording import RESULTS, Facts, Recorded
from accuracy.live.allowed import Allowed, in_tokens, policy_of
from accuracy.live.mask import Mask
from accuracy.reference import float64
from accuracy.reference.float64 import Reference
from accuracy.runtime.sharding import cut, cut_documents, joined

Named = dict[str, Tensor]


@dataclass(frozen=True)
class Call:
    """facts: of the first rank; tensors: of the whole sequence, (B, S, heads, D), lse (B, S, H); size: ranks."""

    facts: Facts
    tensors: Named
    size: int = 1

    @property
    def returned(self) -> list[str]:
        """What the model gave, in the order in which it is computed."""
        return [name for name in RESULTS if name in self.tensors]

    @property
    def unjudged(self) -> str:
        """Why there is no reference for it; "": there is one."""
        facts, formats = self.facts, {str(x.dtype).removeprefix("torch.") for x in self.tensors.values()}
        if facts.dropout:
            return f"dropout {facts.dropout:g} was on: nobody knows which weights it dropped"
        if not {*formats} - {"bool"} <= {*FORMATS}:
            return f"it holds {', '.join(sorted({*formats} - {*FORMATS}))}"
        return facts.note or ("" if self.returned else "it holds nothing that the model returned")

    @property
    def dtype(self) -> str:
        """The coarsest format that its tensors, or autocast, hold a healthy function to."""
        word = self.facts.autocast or self.facts.dtype
        for name in ("q", "k", "v", "out", "dout"):
            if name in self.tensors:
                word = coarser(word, str(self.tensors[name].dtype).removeprefix("torch."))
        return word

    @cached_property
    def mask(self) -> Mask:
        """Who sees whom."""
        q, k = self.tensors["q"], self.tensors["k"]
        return Mask(self.facts, q.shape[1], k.shape[1], self.tensors.get("mask"))

    @property
    def dout(self) -> Tensor:
        """Zeros where there were no gradients."""
        given = self.tensors.get("dout")
        rows, v = self.tensors["q"], self.tensors["v"]
        return rows.new_zeros(*rows.shape[:3], v.shape[3]) if given is None else given

    @cached_property
    def reference(self) -> Reference:
        """Float64 attention on the captured inputs."""
        q, k, v = (self.tensors[name] for name in "qkv")
        return float64.attention(q, k, v, self.dout, **self.how)

    @property
    def how(self) -> dict[str, Any]:
        """Arguments of the reference, and of bounds, beside the tensors."""
        facts = self.facts
        told = {"scale": facts.scale, "softcap": facts.softcap, "sinks": facts.sinks}
        return told | self.mask.for_reference(self.tensors["q"].device)

    @cached_property
    def _allowed(self) -> dict[str, Allowed]:
        return {}

    def rounding(self, dtype: str = "") -> Allowed:
        """What rounding to a dtype may do; "": to the call's own."""
        word = dtype or self.dtype
        if word not in self._allowed:
            q, k, v = (self.tensors[name] for name in "qkv")
            policy = policy_of(self.facts, word, self.size)
            self._allowed[word] = Allowed.of(bounds(q, k, v, self.dout, self.reference, policy, **self.how))
        return self._allowed[word]

    def exact(self, name: str) -> Tensor:
        """The reference's tensor, lse as (B, S, H)."""
        return in_tokens(name, getattr(self.reference, name))

    def shards(self, x: Tensor) -> Tensor:
        """Cut into the ranks': (W, B, S/W, ...)."""
        if self.size == 1:
            return x[None]
        facts = self.facts
        if facts.by_document:
            return cut_documents(x, facts.sharding, self.size, facts.documents)
        return cut(x, facts.sharding, self.size)


def load(found: Recorded, device: str = "cpu") -> Call:
    """Read the files of all ranks and join them. Raises ConfigError where they hold no numbers."""
    shards: dict[str, list[Tensor]] = {}
    for path in found.files:
        with safe_open(path, framework="pt", device=device) as file:
            for name in found.first.shapes:
                shards.setdefault(name, []).append(file.get_tensor(f"{found.first.layer}.{name}"))
    whole = {
        name: joined([in_tokens(name, x) for x in each], *found.shared) if name != "mask" else each[0]
        for name, each in shards.items()
    }
    return Call(found.first, whole, len(found.files))
