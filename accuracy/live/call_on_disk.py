"""One captured call with the tensors of all its ranks joined, its reference, and what rounding may make of it.

How far a healthy function may be from the reference are limits out of running bounds: healthy is all that
`accuracy.bound.policy.loosest` allows, and in a call under autocast or TF32 operands that are rounded first. The limits
have the chances of `accuracy.bound.limits`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from accuracy.bound.limits import DEPENDENT, independent, reach
from accuracy.bound.policy import OF_FLOAT32, cast, loosest
from accuracy.bound.running import bounds
from accuracy.core.dtype import FORMATS, coarser
from accuracy.core.recording import RESULTS, Facts, Recorded
from accuracy.live.tensor_core import marks, rounded, with_rounded
from accuracy.live.uncounted import through_maximum
from accuracy.live.writing import outweighs
from accuracy.reference import float64
from accuracy.reference.float64 import Reference
from accuracy.runtime.sharding import cut, join

Named = dict[str, Tensor]


@dataclass(frozen=True)
class Allowed:
    """certain: no rounding goes beyond; variance: of the error. By tensor, in token layout, lse (B, S, H)."""

    certain: dict[str, Tensor]
    variance: dict[str, Tensor]

    def whole(self, name: str, part: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
        """The Frobenius norm of the error of a tensor; part: makes (W, ...) of it, to each of which belongs a limit."""
        variance, certain = part(self.variance[name]), part(self.certain[name])
        width = variance.shape[-1] if self.variance[name].dim() == 4 else 1
        factor = reach(variance[0].numel() / width / DEPENDENT, 1)
        return (variance.flatten(1).sum(1).sqrt() * factor).minimum(certain.flatten(1).norm(dim=1))

    def rows(self, name: str) -> Tensor:
        """The norm of the error of each row, a head of a token: (B, S, heads)."""
        variance, certain = self.variance[name], self.certain[name]
        width = variance.shape[-1] if variance.dim() == 4 else 1
        events = variance.numel() / width
        if variance.dim() == 4:
            variance, certain = variance.sum(-1), certain.norm(dim=-1)
        return (variance.sqrt() * reach(independent(width), events)).minimum(certain)


def in_tokens(name: str, x: Tensor) -> Tensor:
    """lse (B, H, S) as (B, S, H); the others as they are."""
    return x.transpose(1, 2) if name == "lse" else x


@dataclass(frozen=True)
class Mask:
    """Of a whole call. queries, keys: S of all ranks; given: its mask tensor (1 or B, 1 or H, Sq, S), or None."""

    facts: Facts
    queries: int
    keys: int
    given: Tensor | None = None

    def block(self, item: int, head: int, first: int, last: int) -> Tensor:
        """What is added to the scores of rows first to last with every key: float64, -inf where a key is not seen."""
        added = torch.zeros(last - first, self.keys, dtype=torch.float64)
        added.masked_fill_(~self._seen(first, last), -math.inf)
        if self.given is None:
            return added
        own = self.given[item % self.given.shape[0], head % self.given.shape[1], first:last].cpu()
        return added.masked_fill(~own, -math.inf) if own.dtype == torch.bool else added + own.double()

    def for_reference(self, device: torch.device) -> dict[str, Any]:
        """Keyword arguments of `accuracy.reference.float64.attention`."""
        facts = self.facts
        left, right = facts.window or (None, None)
        one_sided = facts.window is not None and right != (0 if facts.causal else left)
        blind = facts.causal and not facts.top_left and self.queries > self.keys
        crossed = facts.window is not None and self.queries != self.keys
        if facts.documents_k or one_sided or blind or crossed or (facts.documents and self.queries != self.keys):
            seen = self._seen(0, self.queries)[None, None].to(device)
            if self.given is None:
                return {"causal": False, "mask": seen}
            given = self.given
            hidden = given & seen if given.dtype == torch.bool else given.double().masked_fill(~seen, -math.inf)
            return {"causal": False, "mask": hidden}
        return {"causal": facts.causal, "top_left": facts.top_left, "window": left, "documents": facts.documents,
                "mask": self.given}  # fmt: skip

    def _seen(self, first: int, last: int) -> Tensor:
        """(rows, S), of the mask that words say."""
        facts, row, key = self.facts, torch.arange(first, last)[:, None], torch.arange(self.keys)[None]
        shift: int | Tensor = 0 if facts.top_left else self.keys - self.queries
        seen = torch.ones(last - first, self.keys, dtype=torch.bool)
        if facts.documents:
            lengths = torch.tensor([facts.documents, facts.documents_k or facts.documents])
            of_row, of_key = (torch.repeat_interleave(torch.arange(lengths.shape[1]), each) for each in lengths)
            mine = of_row[first:last]
            seen &= mine[:, None] == of_key[None]
            ends = lengths.cumsum(1)
            shift = (ends[1] - ends[0])[mine][:, None]  # the last query of a document sees its last key
        distance = row + shift - key
        if facts.causal:
            seen &= distance >= 0
        left, right = facts.window or (None, None)
        if left is not None:
            seen &= distance <= left
        if right is not None:
            seen &= distance >= -right
        return seen


@dataclass(frozen=True)
class Call:
    """facts: of the first rank; tensors: of the whole sequence, (B, S, heads, D), lse (B, S, H); size: ranks."""

    facts: Facts
    tensors: Named
    size: int = 1
    _allowed: dict[tuple[str, bool], Allowed] = field(default_factory=dict)  # by the arguments of `rounding`

    @property
    def returned(self) -> list[str]:
        """What the model gave, in the order in which it is computed."""
        return [name for name in RESULTS if name in self.tensors]

    @property
    def unjudged(self) -> str:
        """Why there is no reference for it; "": there is one."""
        numbers = [x for name, x in self.tensors.items() if name != "mask"]
        facts, formats = self.facts, {str(x.dtype).removeprefix("torch.") for x in numbers}
        if facts.dropout:
            return f"dropout {facts.dropout:g} was on: nobody knows which weights it dropped"
        if not formats <= {*FORMATS}:
            return f"it holds {', '.join(sorted(formats - {*FORMATS}))}"
        if not facts.note and self._differentiates_blind_rows():
            return "its mask adds a number to every key of a query that outweighs the scores, and its dout is not zero"
        if facts.note or not self.returned:
            return facts.note or "it holds nothing that the model returned"
        try:
            self.reference  # noqa: B018  # it is computed here, once
        except ValueError as error:  # a mask under which a query sees no key, say
            return str(error)
        return ""

    def _differentiates_blind_rows(self) -> bool:
        """Whether a query has gradients of which every key is hidden, by a number and not by -inf: the scores are lost
        in that number's rounding, which is each function's own."""
        mask = self.tensors.get("mask")
        if mask is None or mask.dtype == torch.bool or "dout" not in self.tensors:
            return False
        blind = (outweighs(mask) & ~mask.isneginf()).all(-1)
        return bool((blind & self.tensors["dout"].ne(0).any(-1).transpose(1, 2)).any())

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
        return {
            "scale": facts.scale, "softcap": facts.softcap, "sinks": facts.sinks,
            **self.mask.for_reference(self.tensors["q"].device),
        }  # fmt: skip

    @cached_property
    def products(self) -> str:
        """One of `OF_FLOAT32` where out, or dv where out is right in float32, shows that a float32 function rounds the
        operands of its products so, or of some of them."""
        if {getattr(self.tensors.get(name), "dtype", None) for name in ("q", "k", "v", "out")} != {torch.float32}:
            return ""
        q, k, v = (self.tensors[name] for name in "qkv")
        blind = self.reference.lse.transpose(1, 2).isneginf()[..., None]
        out = torch.where(blind, self.reference.out, self.tensors["out"].double())
        is_right = bool(((out - self.reference.out).abs() <= self.rounding().certain["out"]).all())
        for name, x in (("out", out), ("dv", self.tensors.get("dv") if is_right else None)):

            def inside(q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None, name: str = name) -> Tensor:
                dout = self.dout if dout is None else dout
                result: Tensor = getattr(float64.attention(q, k, v, dout, **self.how), name)
                return result

            shown = (
                marks(name, x, (q, k, v, self.dout), self.reference, self.facts.scale, inside) if x is not None else ()
            )
            if found := next((to for _, to, _ in shown), ""):
                return found
        return ""

    def rounding(self, dtype: str = "", maximum: bool = False) -> Allowed:
        """What rounding to a dtype may do, and to float32 with products in one of `OF_FLOAT32`; "": to the call's own.
        maximum: of what autograd takes through a maximum, too."""
        word = dtype or self.dtype
        if (word, maximum) not in self._allowed:
            q, k, v = (self.tensors[name] for name in "qkv")
            policy = loosest("float32" if word in OF_FLOAT32 else word, 1 if self.size == 1 else 2 * self.size)
            if self.facts.autocast or self.facts.tf32 or word in OF_FLOAT32:
                policy = cast(policy, "tf32" if self.facts.tf32 and word == "float32" else word)
            found = bounds(q, k, v, self.dout, self.reference, policy, **self.how)
            if maximum:
                found = through_maximum(q, k, v, self.dout, self.reference, found, policy, **self.how)
            sides = [{name: in_tokens(name, getattr(each, side)) for name, each in found.items()}
                     for side in ("certain", "variance")]  # fmt: skip
            self._allowed[word, maximum] = Allowed(*sides)
        return self._allowed[word, maximum]

    def with_rounded_operands(self, dtype: str) -> Iterator["Call"]:
        """Yield this call with q, k and v as they are where they, and q also times a scale, are rounded to a dtype,
        or one of `OF_FLOAT32`, before they are multiplied."""

        def to(x: Tensor) -> Tensor:
            return rounded(x.float(), dtype) if dtype in OF_FLOAT32 else x.to(getattr(torch, dtype))

        q, k, v = (self.tensors[name] for name in "qkv")
        for *own, _ in with_rounded("qkv", (q, k, v, None), to, self.reference, self.facts.scale):
            yield replace(self, tensors=self.tensors | dict(zip("qkv", own, strict=True)), _allowed={})

    def exact(self, name: str) -> Tensor:
        """The reference's tensor, lse as (B, S, H)."""
        return in_tokens(name, getattr(self.reference, name))

    def shards(self, x: Tensor) -> Tensor:
        """Cut into the ranks': (W, B, S/W, ...)."""
        return cut(x, self.facts.cut, self.size)


def load(found: Recorded, device: str = "cpu") -> Call:
    """Read the files of all ranks and join them. Raises ConfigError where they hold no numbers."""
    shards: dict[str, list[Tensor]] = {}
    for path in found.files:
        with safe_open(path, framework="pt", device=device) as file:
            for name in found.first.shapes:
                shards.setdefault(name, []).append(file.get_tensor(f"{found.first.layer}.{name}"))
    whole = {
        name: join(torch.stack([in_tokens(name, x) for x in each]), found.first.cut) if name != "mask" else each[0]
        for name, each in shards.items()
    }
    if "mask" in whole and not found.first.note:  # 1 stands for all queries, or all keys
        whole["mask"] = whole["mask"].expand(-1, -1, whole["q"].shape[1], whole["k"].shape[1])
    return Call(found.first, whole, len(found.files))
