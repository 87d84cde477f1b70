"""A part of a captured call: some batches, heads, tokens and dims of it, which is again a problem of attention."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from accuracy.live.call_on_disk import Call

AXES = ("batch", "heads_kv", "heads", "tokens", "dims")
DIMENSIONS = {"batch": 0, "tokens": 1, "dims": 3}


@dataclass(frozen=True)
class Candidate:
    """What is kept of each axis, ascending. heads: of those that share the kept key heads."""

    batch: tuple[int, ...]
    heads_kv: tuple[int, ...]
    heads: tuple[int, ...]
    tokens: tuple[int, ...]
    dims: tuple[int, ...]

    @classmethod
    def whole(cls, call: Call) -> "Candidate":
        """All of it."""
        (batch, length, heads, dims), heads_kv = call.tensors["q"].shape, call.tensors["k"].shape[2]
        return cls(*(tuple(range(size)) for size in (batch, heads_kv, heads, length, dims)))

    @property
    def size(self) -> str:
        """In words."""
        return f"{len(self.batch)} x {len(self.tokens)} tokens, {len(self.heads)} heads of {len(self.dims)}"

    def with_axis(self, axis: str, kept: Sequence[int], share: int) -> "Candidate":
        """Only these of an axis; share: query heads of a key head. Without a key head, its query heads go."""
        changed = replace(self, **{axis: tuple(kept)})
        if axis == "heads_kv":
            changed = replace(changed, heads=tuple(head for head in self.heads if head // share in kept))
        return changed

    def inputs(self, call: Call) -> Call:
        """q, k, v, dout and the mask of the kept part, without anything that the model returned."""
        tensors = {name: self._kept(x, name) for name, x in call.tensors.items() if name in ("q", "k", "v", "dout")}
        if "mask" in call.tensors:
            tensors["mask"] = self._mask(call.tensors["mask"])
        shapes = {name: tuple(x.shape) for name, x in tensors.items()}
        facts = replace(call.facts, shapes=shapes, documents=self._documents(call.facts.documents), ranks=(0,), rank=0)
        return Call(facts, tensors)

    def _kept(self, x: Tensor, name: str) -> Tensor:
        heads = self.heads if name in ("q", "dout") else self.heads_kv
        for dim, kept in ((0, self.batch), (1, self.tokens), (2, heads), (3, self.dims)):
            if len(kept) < x.shape[dim]:
                x = x.index_select(dim, torch.tensor(kept, device=x.device))
        return x.contiguous()

    def _mask(self, mask: Tensor) -> Tensor:
        for dim, kept in ((0, self.batch), (1, self.heads), (2, self.tokens), (3, self.tokens)):
            if mask.shape[dim] > 1 or dim > 1:
                mask = mask.index_select(dim, torch.tensor(kept, device=mask.device))
        return mask

    def _documents(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Of documents of which nothing is kept nothing is said."""
        if not lengths:
            return ()
        ends = torch.tensor(lengths).cumsum(0)
        mine = torch.searchsorted(ends, torch.tensor(self.tokens), right=True)
        return tuple(int(count) for count in torch.bincount(mine, minlength=len(lengths)) if count)
