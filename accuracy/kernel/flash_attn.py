"""The flash-attn 2 package's low-level forward and backward, which ring-flash-attention calls: an optional extra."""

import importlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import FLASH, NEEDS_CUDA, Abilities, Gradients, How, Kernel
from accuracy.kernel.block import flash_fold


@cache
def _interface() -> Any:
    return importlib.import_module("flash_attn.flash_attn_interface")


def _sight(how: How) -> dict[str, Any]:
    """-1: no limit; 0.0: no cap."""
    left, right = (-1 if side is None else side for side in how.window or (None, None))
    sides = {"window_size_left": left, "window_size_right": right}
    return {"softmax_scale": how.scale, "causal": how.causal, "softcap": how.softcap or 0.0, **sides}


def _plain(function: Any) -> Any:
    """The Python function inside a torch custom operator, whose dispatcher takes more time than a small block."""
    return getattr(function, "_init_fn", function)


@dataclass(frozen=True)
class FlashAttn(Kernel):
    """deterministic: dq summed in a fixed order; false lets atomic adds finish as they come (flash-attn's default)."""

    deterministic: bool = True

    def abilities(self, device: str) -> Abilities:
        """bfloat16 and float16 on CUDA, head_dim to 256 in multiples of 8, partials in the inputs' dtype only."""
        if device != "cuda":
            return Abilities(missing=NEEDS_CUDA)
        try:
            _interface()
        except ImportError as error:
            return Abilities(missing=f"cannot be imported ({error}); install attention-accuracy[flash]")
        return replace(FLASH, deterministic=self.deterministic, features=("window", "softcap"))

    def build(self, device: str) -> "FlashAttn":
        """The package is imported now, before another's stand-in may have its name."""
        _interface()
        return self

    def of_items(self, items: int) -> "FlashAttn":
        """The kernel that folds calls of so many items each."""
        return Folding(self.deterministic, items)

    def forward_split(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, splits: int
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, the keys cut into `splits` parts that are joined in float32 (0: its own choice of a number)."""
        out, lse = _interface().flash_attn_with_kvcache(
            q, k, v, softmax_scale=scale, causal=causal, num_splits=splits, return_softmax_lse=True
        )
        return out, lse

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        out, lse, *_ = _plain(_interface()._flash_attn_forward)(
            q, k, v, dropout_p=0.0, **_sight(how), alibi_slopes=None, return_softmax=False
        )
        return out, lse

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        self._differentiate([(dout, q, k, v, out, lse.contiguous(), *gradients)], how)
        return gradients

    def _differentiate(self, calls: Iterable[Sequence[Tensor]], how: How) -> None:
        """Each with dout, q, k, v, out, lse, and memory for dq, dk, dv."""
        function, sight = _plain(_interface()._flash_attn_backward), _sight(how)
        for call in calls:
            function(*call, dropout_p=0.0, **sight, alibi_slopes=None, deterministic=self.deterministic)


@dataclass(frozen=True)
class Folding(FlashAttn):
    """Calls side by side, of `items` items each: the operator for cached keys, which without new keys, rotary
    embeddings or pages is the forward, is told into how many parts one of the calls would cut its keys. A backward is
    as few calls of the operator as keep every bit, each of which writes to its part of the results. The first of each
    shape is compared with a call by itself; where a bit differs a warning says so, and calls stay calls."""

    items: int = 1

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        """See `flash_fold.foldable`; calls are of `items` items each."""
        if way == "backward":
            return calls
        return flash_fold.most_told(calls, tuple(q.shape), k.shape[1], flash_fold.Device.of(q).processors)

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        if q.shape[0] == self.items:
            return super()._forward(q, k, v, how)
        found = self._told(q, k, v, how)
        alone = partial(FlashAttn._forward, self, how=how)
        if self._proven("forward", (q, k, v), found, alone, how):
            return found
        each = zip(*(x.split(self.items) for x in (q, k, v)), strict=True)
        out, lse = zip(*(alone(*one) for one in each), strict=True)
        return torch.cat(out), torch.cat(lse)

    def _told(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        """All calls as one."""
        _, rows, heads, dim = q.shape
        processors = flash_fold.Device.of(q).processors
        sight = _sight(how)
        out, lse = _interface().flash_attn_with_kvcache(
            q, k, v, softmax_scale=how.scale, causal=how.causal, softcap=sight["softcap"],
            window_size=(sight["window_size_left"], sight["window_size_right"]),
            num_splits=flash_fold.forward_splits(self.items * heads, rows, k.shape[1], dim, processors),
            return_softmax_lse=True,
        )  # fmt: skip
        return out, lse

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        given, calls = (dout, q, k, v, out, lse.contiguous()), len(q) // self.items
        one, on = (self.items, *q.shape[1:]), flash_fold.Device.of(q)
        sizes = flash_fold.backward_calls(calls, one, k.shape[1], on, self.deterministic)
        found = self._parts(given, sizes, how)
        if sizes[0] == 1 or not self.deterministic:
            return found
        sums = -(-on.processors // (sizes[0] * self.items * q.shape[2]))
        if self._proven("backward", given, found, lambda *some: self._parts(some, [1], how), how, sums):
            return found
        return self._parts(given, [1] * calls, how)

    def _parts(self, given: Sequence[Tensor], calls: Sequence[int], how: How) -> tuple[Tensor, ...]:
        """dq, dk, dv; calls: how many of ours each call of the operator takes."""
        gradients = tuple(torch.empty_like(x) for x in given[1:4])
        tensors = (*given, *gradients)
        if len(calls) == 1:
            self._differentiate([tensors], how)
        else:
            items = [each * self.items for each in calls]
            self._differentiate(zip(*(x.split(items) for x in tensors), strict=True), how)
        return gradients

    def _proven(
        self, way: str, given: Sequence[Tensor], found: Sequence[Tensor], alone: Callable[..., Sequence[Tensor]],
        how: How, folded: int = 0,
    ) -> bool:  # fmt: skip
        """Whether the first call's bits are in what was found; asked once for each shape."""
        key = (way, self.items, folded, how.causal, how.window, how.softcap, *((x.dtype, x.shape[1:]) for x in given))
        if key not in _PROVEN:
            expected = alone(*(x[: self.items] for x in given))
            _PROVEN[key] = all(_same_bits(x[: self.items], y) for x, y in zip(found, expected, strict=True))
            if not _PROVEN[key]:
                shapes = ", ".join(str(tuple(x.shape[1:])) for x in given[:3])
                warnings.warn(
                    f"flash-attn's {way} of {shapes} has other bits when folded: calls stay calls", stacklevel=2
                )
        return _PROVEN[key]


_PROVEN: dict[Any, bool] = {}
"""Whether a fold keeps the bits, by what it is of."""


def _same_bits(x: Tensor, y: Tensor) -> bool:
    return torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))


KERNEL = FlashAttn
