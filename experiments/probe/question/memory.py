"""Is every element written, and nothing else read or written? Odd lengths, memory poisoned, guards around.

Fresh memory is filled with NaN by torch itself (also what C++ allocates). What Python code allocates gets a guard of
known values on both sides, which must stay. Inputs lie inside larger buffers of NaN, neither to be read nor written.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from accuracy.runtime import device
from experiments.probe.base import DIM, Answer, Subject, same_bits

QUERIES, KEYS = 37, 101
GUARD, VALUE = 4096, 3.0  # elements on each side of what is allocated, and what they hold


def ask(subject: Subject) -> Answer:
    """All is well, or what is not."""
    shapes = {"q": (QUERIES, 4, 0), "k": (KEYS, 2, 1), "v": (KEYS, 2, 2), "dout": (QUERIES, 4, 3)}
    buffers = {name: _embedded(subject, *shape) for name, shape in shapes.items()}
    before = {name: buffer.clone() for name, (buffer, _) in buffers.items()}
    q, k, v, dout = (view for _, view in buffers.values())
    expected = subject.both(*(x.clone() for x in (q, k, v, dout)), causal=True)
    with device.poisoned(True), Guards() as guards:
        results = subject.both(q, k, v, dout, causal=True)
    broken = {name: int((~x.isfinite()).sum()) for name, x in results.items()}
    found = [f"{count} of {results[name].numel()} of {name} unwritten" for name, count in broken.items() if count]
    found += [
        f"{name} reads what it has not written"
        for name, x in results.items()
        if not broken[name] and not torch.allclose(x.double(), expected[name].double(), rtol=0.1, atol=0.1)
    ]
    found += [f"{name} written to" for name, (buffer, _) in buffers.items() if not same_bits(buffer, before[name])]
    found += [f"writes {guards.overwritten()} elements beside its results"] if guards.overwritten() else []
    return Answer(", ".join(found) or "all written, nothing else touched", {"guarded": len(guards.buffers), **broken})


def _embedded(subject: Subject, length: int, heads: int, seed: int) -> tuple[Tensor, Tensor]:
    """A buffer of NaN, and the view of it that holds an input (1, length, heads, 64)."""
    count = length * heads * DIM
    buffer = torch.full((count + 2 * GUARD,), torch.nan, dtype=subject.torch_dtype, device=subject.device)
    view = buffer[GUARD : GUARD + count].view(1, length, heads, DIM)
    view.copy_(subject.random(1, length, heads, DIM, seed=seed))
    return buffer, view


class Guards(TorchFunctionMode):
    """Inside, what Python code allocates lies between guards. buffers: all of them, with their guards."""

    ALLOCATES = (torch.empty, torch.empty_like, Tensor.new_empty)

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace fresh contiguous floating-point tensors."""
        made = func(*args, **(kwargs or {}))
        if func not in self.ALLOCATES or not made.is_floating_point() or not made.is_contiguous():
            return made
        buffer = torch.full((made.numel() + 2 * GUARD,), VALUE, dtype=made.dtype, device=made.device)
        view = buffer[GUARD : GUARD + made.numel()].view(made.shape).fill_(torch.nan)
        self.buffers.append(buffer)
        return view

    def overwritten(self) -> int:
        """How many elements of the guards have changed."""
        return sum(int((edge != VALUE).sum()) for each in self.buffers for edge in (each[:GUARD], each[-GUARD:]))
