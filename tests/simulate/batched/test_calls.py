"""How many operators of flash-attn and of torch, and passes over memory, a case of 16 ranks calls on an H200: counted
without one, on empty tensors."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accuracy.execute.plan import plan
from accuracy.kernel import flash_attn
from accuracy.kernel.block import flash_fold
from accuracy.runtime.sharding import cut
from accuracy.simulate import program
from accuracy.simulate.batched import fold, listed
from tests.measuring import configuration

PROBLEM = ("problem=issue42", "problem.heads=16", "world_size=16", "dtype=bfloat16", "kernel=eager")


class Counting:
    """In place of the package."""

    def __init__(self) -> None:
        self.forwards = self.backwards = self.passes = 0

    def flash_attn_with_kvcache(self, q: torch.Tensor, *kv: torch.Tensor, **how: Any) -> tuple[torch.Tensor, ...]:
        self.forwards += 1
        return torch.empty_like(q), q.new_empty(len(q), q.shape[2], q.shape[1], dtype=torch.float32)

    _flash_attn_forward = flash_attn_with_kvcache

    def _flash_attn_backward(self, *tensors: torch.Tensor, **how: Any) -> None:
        self.backwards += 1

    def merges(self, *tensors: torch.Tensor) -> bool:
        return True

    adds = merges

    def merge_listed(self, *tensors: torch.Tensor) -> None:
        self.passes += 1

    add_listed = merge_listed


class Operators(TorchDispatchMode):
    """Counts torch's, views among them."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("variant", "forwards", "backwards", "passes", "operators"), [
    ("ring", 6, 2, 9, 420), ("zigzag", 11, 5, 23, 820), ("striped", 11, 5, 23, 820), ("llama3_ring", 16, 2, 3, 670),
    ("bpt_ring", 13, 13, 52, 1300),
])  # fmt: skip
def test_a_case_of_16_ranks_is_few_calls(
    variant: str, forwards: int, backwards: int, passes: int, operators: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting()
    monkeypatch.setattr(flash_attn, "_interface", lambda: counting)
    monkeypatch.setattr(flash_attn.Folding, "_proven", lambda *given, **how: True)
    monkeypatch.setattr(flash_fold.Device, "of", classmethod(lambda cls, x: flash_fold.Device(132, roomy=True)))
    monkeypatch.setattr(listed.available, "one_pass", lambda: counting)
    for name in ("position_is_irrelevant", "on_gpu"):
        monkeypatch.setattr(fold, name, lambda x: True)
    (planned,) = plan(configuration(f"variant={variant}", *PROBLEM), None)
    whole = torch.empty(1, 8192, 16, 128, dtype=torch.bfloat16, device="meta")
    shards = list(zip(*[cut(whole, planned.case.variant.sharding, 16)] * 4, strict=True))
    work = program.Work(planned.case, flash_attn.KERNEL(), shards)
    program.backward(work, program.forward(work))  # what is kept of shapes and plans
    counting.__init__()  # type: ignore[misc]
    with Operators() as counted:
        program.backward(work, program.forward(work))
    assert (counting.forwards, counting.backwards, counting.passes) == (forwards, backwards, passes)
    assert counted.count <= operators
