"""Faults of published versions, shown by what they do to the numbers. A version without one fails its test here."""

import pytest
import torch

from accuracy.kernel.eager import Eager
from tests.package.driving import case_of, reference_of, results_of, rows_of, shards_of
from tests.real_ranks import RealRanks

pytestmark = pytest.mark.xdist_group("packages")
WRONG = 0.1  # relative error: float32 rounding is 10^-7, a gradient that lacks or repeats a block of four 0.3 and more
RINGS = ("ring_flash_attn_ring", "ring_flash_attn_llama3_ring", "yunchang_ring")
ZIGZAGS = ("ring_flash_attn_zigzag", "yunchang_zigzag")
STRIPES = ("ring_flash_attn_stripe", "yunchang_stripe")
VARLEN = ("ring_flash_attn_ring_varlen", "ring_flash_attn_zigzag_varlen")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("variant", [*RINGS, VARLEN[0]])
def test_the_rings_round_dq_to_bfloat16_whatever_comes(pool: RealRanks, variant: str, dtype: str) -> None:
    """`dq.to(torch.bfloat16)`: every value is one of bfloat16, which one in 8 of float16's and one in 2^16 of
    float32's values is."""
    theirs, ours = (results_of(pool, case_of(name, f"dtype={dtype}", "world_size=2")) for name in (variant, "ring"))
    assert all(torch.equal(each["dq"], each["dq"].bfloat16().to(each["dq"].dtype)) for each in theirs)
    assert not any(torch.equal(each["dq"], each["dq"].bfloat16().to(each["dq"].dtype)) for each in ours)


@pytest.mark.parametrize("variant", [*RINGS, *ZIGZAGS, *STRIPES, *VARLEN, "yunchang_hybrid"])
def test_float32_gradients_are_wrong_while_out_is_right(pool: RealRanks, variant: str) -> None:
    """`block_dq_buffer.to(torch.float32)` is the buffer itself, which the next block overwrites."""
    rows = rows_of(pool, case_of(variant, "dtype=float32", "world_size=4"))["error_rel"]
    assert rows["out"] < 1e-6
    assert rows["dq"] > WRONG
    if variant in (*ZIGZAGS, *STRIPES):  # what is received is overwritten, too, and not only what is being sent
        assert rows[["dk", "dv"]].min() > WRONG


@pytest.mark.parametrize("variant", ZIGZAGS)
def test_the_aliased_dq_is_twice_the_last_block_s(pool: RealRanks, variant: str) -> None:
    """Two ranks: rank 1's accumulator is the buffer that its second block overwrites and that then adds itself."""
    case = case_of(variant, "dtype=float32", "world_size=2")
    (_, k0, v0, _), (q1, _, _, dout1) = shards_of(case)
    mine = results_of(pool, case)[1]
    front = slice(0, k0.shape[1] // 2)
    block, _, _ = Eager().backward(
        dout1, q1, k0[:, front], v0[:, front], mine["out"], mine["lse"],
        scale=case.problem.softmax_scale, causal=False, gradient_dtype=torch.float32,
    )  # fmt: skip
    assert torch.equal(mine["dq"], 2 * block)


@pytest.mark.parametrize("variant", ["ring_attention_pytorch_ring", "ring_attention_pytorch_striped"])
def test_lucidrains_dk_is_dk_plus_dv_and_dv_is_the_next_rank_s(pool: RealRanks, variant: str) -> None:
    """`dk, dv = dkv` unpacks what a pass returns, (received, sent), each with dk and dv stacked; autograd then sums
    the stack to the shape of k. 1e-5: float32 sums of 10^3 terms."""
    case = case_of(variant, "dtype=float32", "world_size=4")
    reference, found = reference_of(case), results_of(pool, case)
    for rank, mine in enumerate(found):
        following = reference[(rank + 1) % 4]
        torch.testing.assert_close(
            mine["dk"].double(), reference[rank]["dk"] + reference[rank]["dv"], rtol=0, atol=1e-5
        )
        torch.testing.assert_close(mine["dv"].double(), following["dk"] + following["dv"], rtol=0, atol=1e-5)
        torch.testing.assert_close(mine["dq"].double(), reference[rank]["dq"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", ["ringmaster_zigzag", "ringmaster_distflash"])
def test_ringmaster_s_balanced_rings_add_gradients_in_16_bits(pool: RealRanks, variant: str) -> None:
    """Its peer-to-peer ring keeps float32 sums, so that more ranks cost nothing; one rounding a hop more does."""
    growth = {}
    for name in (variant, "ringmaster_ring"):
        errors = [rows_of(pool, case_of(name, "dtype=bfloat16", f"world_size={size}"))["error_rel"] for size in (2, 4)]
        growth[name] = (errors[1] / errors[0])[["dk", "dv"]]
    assert growth["ringmaster_ring"].max() < 1.01
    assert growth[variant].min() > 1.05
