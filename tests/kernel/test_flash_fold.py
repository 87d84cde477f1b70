"""How far flash-attention's calls fold, from its own rules: worked by hand for the 132 processors of an H200."""

import warnings
from typing import Any

import pytest
import torch

from accuracy.kernel import flash_attn
from accuracy.kernel.block import flash_fold
from accuracy.kernel.block.flash_fold import (
    GRID_LIMIT,
    Device,
    backward_calls,
    backward_parts,
    forward_splits,
    most,
    most_told,
)  # fmt: skip

PROCESSORS = 132
H200, SMALL = Device(PROCESSORS, roomy=True), Device(PROCESSORS, roomy=False)


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
        self.called("backward", q)
        dq.copy_(dout + q + (self.fault if len(q) > 1 else 0.0))
        dk.copy_(k + out)
        dv.copy_(v)

    def called(self, name: str, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.calls.append((name, len(q)))
        return q + (self.fault if len(q) > 1 else 0.0), q[..., 0].transpose(1, 2)


@pytest.mark.parametrize(("keys", "dim"), [(256, 64), (128, 128), (64, 256)])
def test_keys_of_one_tile_are_never_cut(keys: int, dim: int) -> None:
    assert {forward_splits(planes, 64, keys, dim, PROCESSORS) for planes in range(1, 400)} == {1}
    assert forward_splits(1, 64, keys + 1, dim, PROCESSORS) == 2


def test_a_full_device_cuts_nothing() -> None:
    """264 slots, of which 0.8 are 211.2: 212 tiles of rows leave the keys whole, 64 with 4 parts fill 256 (3: 192)."""
    assert forward_splits(212, 64, 4096, 128, PROCESSORS) == 1
    assert forward_splits(64, 64, 4096, 128, PROCESSORS) == 4


def test_partial_sums_of_dq_are_dealt_out_over_the_processors() -> None:
    """5 heads: 27 partial sums for more tiles of keys; 27 tiles and fewer, one a sum, are added in the order in which a
    single sum adds them, that of 132 and more heads."""
    assert [backward_parts(5, 128 * tiles, 64, H200) for tiles in (40, 28, 27, 3)] == [27, 27, 1, 1]
    assert [backward_parts(planes, 128 * 40, 64, H200) for planes in (131, 132, 500)] == [2, 1, 1]


def test_backwards_fold_in_twos_or_all_at_once() -> None:
    """16 heads of 4 tiles: two calls have 5 partial sums, 3 have 3, 8 have 2, 9 and more have 1."""
    fold = {calls: backward_calls(calls, (1, 512, 16, 128), 512, H200) for calls in (1, 3, 8, 9, 120)}
    assert fold == {1: [1], 3: [2, 1], 8: [2] * 4, 9: [9], 120: [120]}
    assert backward_calls(8, (1, 512, 16, 128), 512, H200, deterministic=False) == [8]


def test_a_device_with_less_shared_memory_has_smaller_tiles_of_keys() -> None:
    assert [backward_parts(30, 512, dim, H200) for dim in (64, 128, 192, 256)] == [1, 1, 5, 5]
    assert [backward_parts(30, 512, dim, SMALL) for dim in (64, 128, 192, 256)] == [1, 5, 5, 5]


def test_calls_fold_as_long_as_nothing_is_cut_otherwise() -> None:
    """Three tiles of keys: 5 heads a call, so that 13 calls have 65 heads and 3 partial sums, 14 have 70 and 2."""
    one = (1, 384, 5, 64)
    assert most("backward", 64, one, 384, H200) == 13
    assert most("backward", 64, (1, 128, 5, 64), 128, H200) == 64
    assert most("forward", 64, (1, 1, 8, 64), 4096, H200) == 1
    assert most("forward", 10**6, (2, 64, 8, 64), 64, H200) == GRID_LIMIT // 2


def test_forwards_that_are_told_their_parts_fold_as_memory_and_grid_allow() -> None:
    """A rank of 16: 16 heads of 512 rows and keys are cut in 2, of which 32 calls have 2^26 partial results; a single
    row is not counted."""
    assert most("forward", 16, (1, 512, 16, 128), 512, H200) == 1
    assert most_told(16, (1, 512, 16, 128), 512, PROCESSORS) == 16
    assert most_told(99, (1, 512, 16, 128), 512, PROCESSORS) == 32
    assert most_told(10**6, (2, 64, 8, 64), 64, PROCESSORS) == GRID_LIMIT // 16
    assert most_told(64, (1, 1, 8, 64), 4096, PROCESSORS) == 1


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Operators:
    found = Operators()
    monkeypatch.setattr(flash_attn, "_interface", lambda: found)
    monkeypatch.setattr(flash_attn, "_PROVEN", {})
    monkeypatch.setattr(flash_fold.Device, "of", classmethod(lambda cls, x: H200))
    return found


HOW: dict[str, Any] = {"scale": 0.1, "causal": True}


def test_folded_forwards_are_told_the_parts_of_one(operators: Operators) -> None:
    """16 heads of 512 rows and keys are cut in 2; three such calls would by themselves be cut in none. The first fold
    of a shape is compared with a call by itself."""
    q = torch.randn(3, 512, 16, 128)
    kernel = flash_attn.KERNEL().of_items(1)
    assert kernel.foldable("forward", 3, q[:1], q[:1]) == 3
    for some in (q, q, q[:1]):
        out, _ = kernel.forward(some, some, some, **HOW, out_dtype=torch.float32, window=(7, None))
        assert torch.equal(out, some)
    assert operators.calls == [("told", 3), ("forward", 1), ("told", 3), ("forward", 1)]
    assert operators.how == {
        "softmax_scale": 0.1, "causal": True, "softcap": 0.0, "window_size": (7, -1), "num_splits": 2,
        "return_softmax_lse": True,
    }  # fmt: skip


def test_a_folded_backward_is_as_few_calls_as_keep_every_bit(operators: Operators) -> None:
    """16 heads of 512 keys in 4 tiles: two calls have 5 partial sums of dq for these 4, three have 3."""
    kernel = flash_attn.KERNEL().of_items(1)
    dout, q, k, v, out = torch.randn(5, 3, 512, 16, 128)
    lse = torch.randn(16, 3, 512).transpose(0, 1)
    assert kernel.foldable("backward", 3, q[:1], k[:1]) == 3
    for _ in range(2):
        found = kernel.backward(dout, q, k, v, out, lse, **HOW, gradient_dtype=torch.float32)
        assert all(torch.equal(a, b) for a, b in zip(found, (dout + q, k + out, v), strict=True))
    assert operators.calls == [("backward", count) for count in (2, 1, 1, 2, 1)]


def test_a_fold_that_changes_a_bit_is_said_and_not_used(operators: Operators) -> None:
    """The planted fault: several items in a call add to what it gives. The second time nothing is compared or said."""
    operators.fault = 2.0**-20
    kernel = flash_attn.KERNEL().of_items(1)
    dout, q, k, v, out = torch.randn(5, 2, 512, 16, 128)
    lse = torch.randn(2, 16, 512)
    for again in (False, True):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ours, _ = kernel.forward(q, k, v, **HOW, out_dtype=torch.float32)
            dq, *_ = kernel.backward(dout, q, k, v, out, lse, **HOW, gradient_dtype=torch.float32)
        assert torch.equal(ours, q)
        assert torch.equal(dq, dout + q)
        ways = [] if again else ["forward", "backward"]
        assert [str(each.message).split(" of ")[0] for each in said] == [f"flash-attn's {way}" for way in ways]


def test_what_is_not_deterministic_folds_to_the_limit_of_the_grid() -> None:
    q = torch.empty(2, 64, 1, 8)
    assert flash_attn.KERNEL(deterministic=False).foldable("backward", 10**6, q, q) == GRID_LIMIT // 2
