"""What one rank of a ring checks by itself: the rows of its own tokens, against the whole sequence."""

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

import accuracy

RANKS, TOKENS = 4, 256
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
generator = torch.Generator().manual_seed(0)
Q, K, V, DOUT = (torch.randn(1, TOKENS, 4, 64, generator=generator).to(DEVICE, torch.bfloat16) for _ in range(4))


def rows_of(rank):
    """The positions of a zigzag rank's tokens."""
    chunks = torch.arange(TOKENS).chunk(2 * RANKS)
    return torch.cat([chunks[rank], chunks[2 * RANKS - 1 - rank]])


def run_with_context_parallelism(rank, factor=1.0):
    """out, dq, dk, dv of a rank; stands for a package's call. factor: the planted fault is another one of dk."""
    q, k, v = (x.detach().requires_grad_() for x in (Q, K, V))
    out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
    gradients = list(torch.autograd.grad(out, (q, k, v), DOUT))
    gradients[1] = gradients[1] * factor
    rows = rows_of(rank)
    return [x[:, rows].detach() for x in (out, *gradients)]


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_rank_s_own_rows(rank):
    out, dq, dk, dv = run_with_context_parallelism(rank)
    accuracy.assert_close(out, Q, K, V, dout=DOUT, dq=dq, dk=dk, dv=dv, causal=True, rows=rows_of(rank))


@pytest.mark.skipif(DEVICE == "cpu" or not find_spec("transformer_engine"), reason="needs TransformerEngine, a GPU")
@pytest.mark.parametrize("name", ["p2p", "all_gather"])
def test_transformer_engine_s_own_code(name):
    """Two ranks run TransformerEngine's context parallelism on flash-attn; where there is one GPU, they share it."""
    accuracy.assert_accurate(f"transformer_engine_{name}", kernel="flash_attn", dtype="bfloat16", world_size=2)


def test_a_factor_that_the_usual_tolerance_passes_is_found():
    (out, dq, dk, dv), right = run_with_context_parallelism(3, factor=1.015), run_with_context_parallelism(3)[2]
    torch.testing.assert_close(dk, right, atol=2.5e-2, rtol=2.5e-2)
    with pytest.raises(AssertionError):
        accuracy.assert_close(out, Q, K, V, dout=DOUT, dq=dq, dk=dk, dv=dv, causal=True, rows=rows_of(3))
