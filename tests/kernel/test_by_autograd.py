"""Autograd's gradients of a block are made those for out and lse over all keys."""

import torch
from torch import Tensor

from accuracy.kernel.block import by_autograd


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Full, one key/value head a query head."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v), scores.logsumexp(-1)


def problem(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, 12, 3, 8, generator=generator, dtype=torch.float64).to(dtype) for _ in range(4)]


def own(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(attend(*leaves)[0], leaves, dout)


def test_one_block_alone_has_the_kernels_own_gradients_bit_for_bit() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        q, k, v, dout = problem(dtype)
        found = by_autograd.gradients(attend, dout, q, k, v, *attend(q, k, v))
        assert all(torch.equal(a, b) for a, b in zip(found, own(q, k, v, dout), strict=True))


def test_blocks_add_up_and_without_the_correction_they_do_not() -> None:
    """Float64; sums of 12 terms twice over: 100 u. The planted fault is each block's own gradient."""
    q, k, v, dout = problem(torch.float64)
    out, lse = attend(q, k, v)
    expected = own(q, k, v, dout)
    for correct in (True, False):
        parts = [
            by_autograd.gradients(attend, dout, q, k[:, keys], v[:, keys], out, lse)
            if correct
            else own(q, k[:, keys], v[:, keys], dout)
            for keys in (slice(0, 5), slice(5, 12))
        ]
        found = parts[0][0] + parts[1][0], torch.cat([parts[0][1], parts[1][1]], 1)
        for x, reference in zip(found, expected, strict=False):
            error = (x - reference).norm() / reference.norm()
            assert error < 100 * 2**-53 if correct else error > 0.1
