"""How far flash-attention's calls fold, from its own rules: worked by hand for the 132 processors of an H200."""

import warnings
from typing import Any

import pytest
import torch

from accuracy.kernel import flash_attn
from accuracy.kernel.block import flash_fold

PROCESSORS = 132
H200, SMALL = (flash_fold.Device(PROCESSORS, roomy=roomy) for roomy in (True, False))
RANK = (1, 512, 16, 128)


def test_calls_fold_as_far_as_the_package_s_own_rules_keep_every_bit() -> None:
    """Keys of one tile are never cut. 264 slots, of which 0.8 are 211.2: 212 tiles of rows leave the keys whole, 64
    with 4 parts fill 256 (3: 192). dq of 5 heads has 27 partial sums for more tiles of keys; 27 tiles and fewer, one a
    sum, are added in the order in which a single sum adds them. 16 heads of 4 tiles: two calls have 5 sums, 3 have 3, 8
    have 2, 9 and more have 1: they fold in twos or all at once. A rank of 16: 16 heads of 512 rows and keys are cut in
    2, of which 32 calls have 2^26 partial results."""
    assert {flash_fold.forward_splits(planes, 64, 128, 128, PROCESSORS) for planes in range(1, 400)} == {1}
    cuts = ((1, 129, 2), (212, 4096, 1), (64, 4096, 4))
    assert all(flash_fold.forward_splits(planes, 64, keys, 128, PROCESSORS) == n for planes, keys, n in cuts)
    assert [flash_fold.backward_parts(5, 128 * tiles, 64, H200) for tiles in (40, 28, 27, 3)] == [27, 27, 1, 1]
    assert [flash_fold.backward_parts(30, 512, 128, device) for device in (H200, SMALL)] == [1, 5]
    fold = {calls: flash_fold.backward_calls(calls, RANK, 512, H200) for calls in (1, 3, 8, 9, 120)}
    assert fold == {1: [1], 3: [2, 1], 8: [2] * 4, 9: [9], 120: [120]}
    assert flash_fold.backward_calls(8, RANK, 512, H200, deterministic=False) == [8]
    assert flash_fold.most("forward", 16, RANK, 512, H200) == 1
    assert flash_fold.most("forward", 10**6, (2, 64, 8, 64), 64, H200) == flash_fold.GRID_LIMIT // 2
    assert flash_fold.most_told(99, RANK, 512, PROCESSORS) == 32


class Operators:
    """In place of the package: out is q, dq is dout + q, dk is k + out, dv is v; a fault is added to out and dq of
    calls of several items."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.how: dict[str, Any] = {}
        self.fault = 0.0

    def flash_attn_with_kvcache(self, q: torch.Tensor, *kv: torch.Tensor, **how: Any) -> tuple[torch.Tensor, ...]:
        self.how = how
        return self.called("told", q)

    def _flash_attn_forward(self, q: torch.Tensor, *kv: torch.Tensor, **how: Any) -> tuple[torch.Tensor, ...]:
        return self.called("forward", q)

    def _flash_attn_backward(self, *x: torch.Tensor, **how: Any) -> None:
        dout, q, k, v, out, lse, dq, dk, dv = x
        assert lse.is_contiguous()
        for result, value in ((dq, dout + self.called("backward", q)[0]), (dk, k + out), (dv, v)):
            result.copy_(value)

    def called(self, name: str, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.calls.append((name, len(q)))
        return q + (self.fault if len(q) > 1 else 0.0), q[..., 0].transpose(1, 2)


@pytest.mark.parametrize("fault", [0.0, 2.0**-20])
def test_a_fold_has_the_parts_of_one_call_or_is_said_to_differ(fault: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward would by itself be cut in other parts, a backward have other sums. The first fold of a shape is
    compared with a call by itself, the second time nothing is compared or said. The planted fault: several items in a
    call add to what it gives."""
    operators, kernel = Operators(), flash_attn.KERNEL().of_items(1)
    operators.fault = fault
    monkeypatch.setattr(flash_attn, "_interface", lambda: operators)
    monkeypatch.setattr(flash_attn, "_PROVEN", {})
    monkeypatch.setattr(flash_fold.Device, "of", classmethod(lambda cls, x: H200))
    dout, q, k, v, out = torch.randn(5, 3, 512, 16, 128)
    lse, how = torch.randn(16, 3, 512).transpose(0, 1), {"scale": 0.1, "causal": True}
    assert [kernel.foldable(way, 3, q[:1], k[:1]) for way in ("forward", "backward")] == [3, 3]
    said, calls = [], []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            found, _ = kernel.forward(q, k, v, **how, out_dtype=torch.float32, window=(7, None))
            gradients = kernel.backward(dout, q, k, v, out, lse, **how, gradient_dtype=torch.float32)
        expected = (q, dout + q, k + out, v)
        assert all(torch.equal(a, b) for a, b in zip((found, *gradients), expected, strict=True))
        said.append([str(each.message).split(" of ")[0] for each in messages])
        calls.append(operators.calls)
        operators.calls = []
    if fault:
        assert said == [["flash-attn's forward", "flash-attn's backward"], []]
    else:
        folded = [("told", 3), ("backward", 2), ("backward", 1)]
        assert calls == [[folded[0], ("forward", 1), *folded[1:], ("backward", 1)], folded]
        assert {"window_size": (7, -1), "num_splits": 2}.items() <= operators.how.items()
