"""Sums of 8-bit products as Hopper's tensor core has them, against a scalar account of it and against an H200's own."""

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from accuracy.core.quantisation import FORMATS, Policy
from accuracy.kernel.lowp import tensor_core
from accuracy.kernel.lowp.quantised import KERNEL
from accuracy.kernel.lowp.tensor_core import Factor, Sum, product
from accuracy.kernel.triton.available import InTriton
from tests.kernel.problem import Problem, results

CUT = Policy(accumulator_bits=14, cut_products=True)
DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def exponent(x: float, least: int) -> int:
    return max(math.frexp(x)[1] - 1, least) if x else -90


def core(left: list[float], right: list[float], least: int) -> float:
    """arXiv 2511.10909: 32 products and the sum before them, aligned to the largest exponent, 13 bits behind the point
    kept of each; what they add up to is cut off to 14 bits."""
    kept = 0.0
    for begin in range(0, len(left), 32):
        pairs = list(zip(left[begin : begin + 32], right[begin : begin + 32], strict=True))
        largest = max(exponent(kept, -126), *(exponent(a, least) + exponent(b, least) for a, b in pairs))
        unit = 2.0 ** (largest - 13)
        whole = sum(math.trunc(x / unit) for x in (kept, *(a * b for a, b in pairs))) * unit
        unit = 2.0 ** (exponent(whole, -126) - 13)
        kept = math.trunc(whole / unit) * unit
    return kept


@pytest.mark.parametrize("word", DTYPES)
def test_every_product_is_cut_as_the_core_cuts_it(word: str) -> None:
    """Equal bits, subnormal codes and zeros too; 40 and 70 terms end inside a step."""
    generator = torch.Generator().manual_seed(0)
    least = FORMATS[word].min_exponent
    for terms in (40, 70):
        left, right = (
            (torch.randn(size, generator=generator) * 2.0 ** torch.randint(-9, 6, size, generator=generator))
            .to(DTYPES[word]).float() for size in ((5, terms), (terms, 6))
        )  # fmt: skip
        found = product(CUT, Factor(left, least=least), Factor(right, least=least))
        expected = [[core(row, column, least) for column in right.T.tolist()] for row in left.tolist()]
        assert found.tolist() == expected


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("word", DTYPES)
def test_one_pass_over_memory_has_the_same_bits(word: str) -> None:
    """On a CPU in the interpreter; with zeros, and a sum that is far above or far below its products; a NaN stays."""
    from accuracy.kernel.triton import fp8_passes

    device = "cuda" if torch.cuda.is_available() else "cpu"
    InTriton().build(device)
    generator, least = torch.Generator().manual_seed(0), FORMATS[word].min_exponent
    sizes = [(2, *size) for size in ((5, 40), (40, 18))]
    left, right = (
        (torch.randn(size, generator=generator) * 2.0 ** torch.randint(-9, 6, size, generator=generator))
        .to(DTYPES[word]).float().to(device) for size in sizes
    )  # fmt: skip
    left[0, 0], right[1, :, 2] = 0.0, 0.0
    kept = (
        torch.randn(2, 5, 18, generator=generator).to(device) * torch.tensor([1e-4, 1e6], device=device)[:, None, None]
    )
    kept[0, 0, 0] = 0.0
    expected = kept
    for step in (slice(0, 32), slice(32, 40)):
        some = Factor(left[..., step], least=least), Factor(right[:, step], least=least)
        expected = tensor_core._cut_step(expected, *some, 14)
    assert torch.equal(fp8_passes.added(kept, left, right, (least, least), 14), expected)
    left[0, 1, 3], right[1, 35, 4], kept[1, 4, 17] = torch.nan, torch.nan, torch.nan
    unknown = torch.isnan(fp8_passes.added(kept, left, right, (least, least), 14))
    assert unknown[0].all(1).tolist() == [False, True, False, False, False]
    assert torch.equal(
        unknown[1].nonzero(), torch.tensor([[0, 4], [1, 4], [2, 4], [3, 4], [4, 4], [4, 17]], device=device)
    )


def test_values_of_one_sign_are_lost_bit_by_bit_where_products_are_cut() -> None:
    """4,096 equal weights, v in [1, 2) in steps of 1/8. The sum is 1.5 n, and the accumulator's last bit is 1/8 up to
    1,365 terms, then 1/4 (1/16 of a product is lost on average, of 1.5), from 2,731 on 1/2 (3/16): (1/16 + 3/16) / 1.5
    of a third of the terms, 5.6%. Where the sum of 32 alone is cut, 32 times less at most."""
    zeros = torch.zeros(1, 4096, 1, 16)
    v = 1 + torch.rand(1, 4096, 1, 16, generator=torch.Generator().manual_seed(1))

    def lost(**knobs: object) -> float:
        kernel = KERNEL(policy="fp8_hopper", **knobs)
        out, _ = kernel.forward(zeros[:, :2], zeros, v, scale=1.0, causal=False, out_dtype=v.dtype)
        return float(1 - out.mean() / v.double().mean())

    assert lost() == pytest.approx(0.25 / 1.5 / 3, rel=0.1)
    assert lost(cut_products=False) < 0.25 / 32


SEEN = np.load(Path(__file__).parent / "h200.npz")
"""Codes and sums of an H200: `core_*` by Triton 3.6 (d = c + a b^T), the others by cuDNN 9.19's e4m3 attention of
128 causal tokens of a head of 128, its scales as the adapter chooses them."""


@pytest.mark.parametrize("word", DTYPES)
def test_an_h200_s_tensor_core_has_these_very_sums(word: str) -> None:
    """16 x 16 sums of 128 terms, begun from values of any size: equal bits. Without the cut of products most differ."""
    left, right = (torch.tensor(SEEN[f"core_{word}_{name}"]).view(DTYPES[word]).float() for name in "ab")
    begin, end = (torch.tensor(SEEN[f"core_{word}_{name}"]) for name in "cd")
    least = FORMATS[word].min_exponent
    for policy, equal in ((CUT, 1.0), (replace(CUT, cut_products=False), 0.5)):
        total = Sum(policy, torch.zeros_like(begin), begin.clone())
        total.add(slice(None), Factor(left, least=least), Factor(right.T, least=least))
        found = float((total.value() == end).double().mean())
        assert found == 1.0 if equal == 1.0 else found < equal


def codes_that_agree(**knobs: object) -> dict[str, float]:
    """Of each result of the emulation, the share that has cuDNN's codes."""
    names = ("q", "k", "v", "do", "o", "dq", "dk", "dv")
    codes = {name: torch.tensor(SEEN[name]).view(torch.float8_e4m3fn).float() for name in names}
    given = [codes[name][None, :, None] * scale for name, scale in zip(names[:4], SEEN["scales"], strict=True)]
    problem = Problem(queries=128, keys=128, heads=1, heads_kv=1, dim=128, scale=128**-0.5)
    found = results(KERNEL(policy="cudnn_e4m3", **knobs), problem, given)
    shares = {}
    for name, x in zip(names[4:], (found[0], *found[2:]), strict=True):
        here = x[0, :, 0] / x.abs().max() * FORMATS["e4m3"].largest
        shares[name] = float((here - codes[name]).abs().le(1e-3 * codes[name].abs()).double().mean())
    return shares


def test_the_emulation_has_the_codes_of_cudnn_on_an_h200() -> None:
    """Neighbouring codes are 2^-4 apart, so 1e-3 tells them apart. Up to 1 in 1,000 may be next to a tie, which the
    last bit of float32 decides. Each knob of the policy is seen in what it touches."""
    assert min(codes_that_agree().values()) > 0.999
    assert codes_that_agree(ds_by_half=False)["dq"] < 0.99
    assert max(codes_that_agree(accumulator_bits=24, cut_products=False).values()) < 0.995
    assert codes_that_agree(key_chunk=64)["o"] < 0.95
