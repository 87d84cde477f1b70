"""The stand-in for flash-attn computes what flash-attn would be asked for, in its layouts, and nothing else."""

import inspect
import sys

import pytest
import torch

from accuracy.kernel.eager import Eager
from accuracy.package import flash_attn_stand_in, replaced

KERNEL = Eager()
INTERFACE = flash_attn_stand_in.interface(KERNEL)
PLAIN = {"dropout_p": 0.0, "softmax_scale": 0.3, "causal": True, "window_size_left": -1, "window_size_right": -1,
         "softcap": 0.0, "alibi_slopes": None}  # fmt: skip


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_packed_sequences_are_the_single_ones_one_behind_the_other() -> None:
    """Lengths 3 and 5 on 4 and 7 keys; lse comes as (H, T). Equal bits: the same kernel on the same rows."""
    rows, keys = torch.tensor([0, 3, 8], dtype=torch.int32), torch.tensor([0, 4, 11], dtype=torch.int32)
    q, k, v, dout = tensors((8, 4, 8), (11, 2, 8), (11, 2, 8), (8, 4, 8))
    borders = {"cu_seqlens_q": rows, "cu_seqlens_k": keys, "max_seqlen_q": 5, "max_seqlen_k": 7}
    out, lse, *_ = INTERFACE._flash_attn_varlen_forward(q, k, v, **borders, **PLAIN)
    dq, dk, dv = (torch.full_like(x, torch.nan) for x in (q, k, v))
    INTERFACE._flash_attn_varlen_backward(dout, q, k, v, out, lse, dq, dk, dv, **borders, **PLAIN)
    assert lse.shape == (4, 8)
    for i, j in ((slice(0, 3), slice(0, 4)), (slice(3, 8), slice(4, 11))):
        single = q[None, i], k[None, j], v[None, j]
        one, one_lse = KERNEL.forward(*single, scale=0.3, causal=True, out_dtype=torch.float32)
        gradients = KERNEL.backward(
            dout[None, i], *single, one, one_lse, scale=0.3, causal=True, gradient_dtype=torch.float32
        )
        assert torch.equal(out[i], one[0])
        assert torch.equal(lse[:, i], one_lse[0])
        assert all(torch.equal(x, y[0]) for x, y in zip((dq[i], dk[j], dv[j]), gradients, strict=True))


def test_gradients_are_written_into_slices_in_place() -> None:
    q, k, v, dout = tensors((1, 6, 4, 8), (1, 6, 2, 8), (1, 6, 2, 8), (1, 6, 4, 8))
    out, lse, *_ = INTERFACE._flash_attn_forward(q, k, v, **PLAIN, return_softmax=False)
    buffer = torch.full((1, 9, 4, 8), torch.nan)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    INTERFACE._flash_attn_backward(dout, q, k, v, out, lse, buffer[:, :6], dk, dv, **PLAIN, deterministic=True)
    assert buffer[:, :6].isfinite().all()
    assert buffer[:, 6:].isnan().all()


def test_the_differentiable_function_is_the_kernel() -> None:
    q, k, v, dout = tensors((2, 6, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8), (2, 6, 4, 8))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = INTERFACE.flash_attn_func(*leaves, causal=True)
    how = {"scale": 8**-0.5, "causal": True}
    expected, lse = KERNEL.forward(q, k, v, out_dtype=torch.float32, **how)
    assert torch.equal(out, expected)
    gradients = KERNEL.backward(dout, q, k, v, expected, lse, gradient_dtype=torch.float32, **how)
    assert all(map(torch.equal, torch.autograd.grad(out, leaves, dout), gradients))


@pytest.mark.parametrize(
    "asked", [{"dropout_p": 0.1}, {"window_size_left": 8}, {"softcap": 30.0}, {"alibi_slopes": torch.ones(4)}]
)
def test_what_it_cannot_do_it_refuses(asked: dict[str, object]) -> None:
    q, k, v = tensors((1, 6, 4, 8), (1, 6, 2, 8), (1, 6, 2, 8))
    with pytest.raises(NotImplementedError, match="no dropout, window"):
        INTERFACE._flash_attn_forward(q, k, v, **{**PLAIN, **asked}, return_softmax=False)


def test_packages_can_read_its_signatures() -> None:
    for name in flash_attn_stand_in.LOW_LEVEL:
        assert inspect.isfunction(getattr(INTERFACE, name))
        assert "window_size_left" in inspect.getfullargspec(getattr(INTERFACE, name)).args


def test_nobody_else_meets_a_stand_in() -> None:
    before = sys.modules.get("flash_attn")
    with replaced.modules(flash_attn_stand_in.modules(KERNEL)):
        assert sys.modules["flash_attn"].__version__ == flash_attn_stand_in.VERSION
    assert sys.modules.get("flash_attn") is before
