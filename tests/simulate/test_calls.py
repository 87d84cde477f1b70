"""How many calls of flash-attn, and how many merges and additions, a case of 16 ranks makes on an H200: counted without
one, on empty tensors."""

from typing import Any

import pytest
import torch

from accuracy.execute.plan import plan
from accuracy.kernel import flash_attn
from accuracy.kernel.block import flash_fold
from accuracy.runtime.sharding import cut
from accuracy.simulate import fold, program
from tests.measuring import configuration

PROBLEM = ("problem=issue42", "problem.heads=16", "world_size=16", "dtype=bfloat16", "kernel=eager")


class Counting:
    """In place of the package."""

    def __init__(self) -> None:
        self.forwards = self.backwards = 0

    def flash_attn_with_kvcache(self, q: torch.Tensor, *kv: torch.Tensor, **how: Any) -> tuple[torch.Tensor, ...]:
        self.forwards += 1
        return torch.empty_like(q), q.new_empty(len(q), q.shape[2], q.shape[1], dtype=torch.float32)

    _flash_attn_forward = flash_attn_with_kvcache

    def _flash_attn_backward(self, *tensors: torch.Tensor, **how: Any) -> None:
        self.backwards += 1


@pytest.mark.parametrize(("variant", "forwards", "backwards", "joins"), [
    ("ring", 16, 28, 72), ("zigzag", 31, 43, 138), ("striped", 31, 55, 138),
])  # fmt: skip
def test_a_case_of_16_ranks_is_few_calls(
    variant: str, forwards: int, backwards: int, joins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, joined, original = Counting(), [], fold._join
    monkeypatch.setattr(flash_attn, "_interface", lambda: counting)
    monkeypatch.setattr(flash_attn.Folding, "_proven", lambda *given, **how: True)
    monkeypatch.setattr(flash_fold.Device, "of", classmethod(lambda cls, x: flash_fold.Device(132, roomy=True)))
    monkeypatch.setattr(fold, "position_is_irrelevant", lambda x: True)
    monkeypatch.setattr(fold, "_join", lambda run: joined.append(run) or original(run))
    (planned,) = plan(configuration(f"variant={variant}", *PROBLEM), None)
    whole = torch.empty(1, 8192, 16, 128, dtype=torch.bfloat16, device="meta")
    shards = list(zip(*[cut(whole, planned.case.variant.sharding, 16)] * 4, strict=True))
    work = program.Work(planned.case, flash_attn.KERNEL(), shards)
    program.backward(work, program.forward(work))
    assert (counting.forwards, counting.backwards, len(joined)) == (forwards, backwards, joins)
