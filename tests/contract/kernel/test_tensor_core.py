"""Sums of 8-bit products as Hopper's tensor core has them (arXiv 2511.10909), against an H200's own."""

import importlib.util
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
from tests.contract.kernel.problem import Problem, results

CUT = Policy(accumulator_bits=14, cut_products=True)
DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def operands(word: str, *sizes: tuple[int, ...]) -> list[torch.Tensor]:
    """Codes of every size, subnormal ones and zeros too."""
    generator = torch.Generator().manual_seed(0)
    sized = (torch.randn(x, generator=generator) * 2.0 ** torch.randint(-9, 6, x, generator=generator) for x in sizes)
    return [x.to(DTYPES[word]).float() for x in sized]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("word", DTYPES)
def test_one_pass_over_memory_has_the_same_bits(word: str) -> None:
    """On a CPU in the interpreter; with zeros, and a sum that is far above or far below its products; a NaN stays."""
    from accuracy.kernel.triton import one_pass

    device = "cuda" if torch.cuda.is_available() else "cpu"
    InTriton().build(device)
    least = FORMATS[word].min_exponent
    left, right = (x.to(device) for x in operands(word, (2, 5, 40), (2, 40, 18)))
    left[0, 0], right[1, :, 2] = 0.0, 0.0
    kept = torch.randn(2, 5, 18, generator=torch.Generator().manual_seed(1)) * torch.tensor([1e-4, 1e6])[:, None, None]
    kept[0, 0, 0] = 0.0
    kept = expected = kept.to(device)
    for step in (slice(0, 32), slice(32, 40)):
        some = Factor(left[..., step], least=least), Factor(right[:, step], least=least)
        expected = tensor_core._cut_step(expected, *some, 14)
    assert torch.equal(one_pass.add_cut(kept, left, right, (least, least), 14), expected)
    left[0, 1, 3], right[1, 35, 4], kept[1, 4, 17] = torch.nan, torch.nan, torch.nan
    unknown = torch.isnan(one_pass.add_cut(kept, left, right, (least, least), 14))
    assert unknown[0].all(1).tolist() == [False, True, False, False, False]
    assert unknown[1].nonzero().tolist() == [[0, 4], [1, 4], [2, 4], [3, 4], [4, 4], [4, 17]]


SEEN = np.load(Path(__file__).parent / "h200.npz")
"""Codes and sums of an H200: `core_*` by Triton 3.6 (d = c + a b^T), the others by cuDNN 9.19's e4m3 attention of
128 causal tokens of a head of 128, its scales as the adapter chooses them."""


@pytest.mark.parametrize("word", DTYPES)
def test_an_h200_s_tensor_core_has_these_very_sums(word: str) -> None:
    """16 x 16 sums of 128 terms, begun from values of any size: equal bits. Without the cut of products most differ. A
    step of 32 that ends early is one with zeros."""
    left, right = (torch.tensor(SEEN[f"core_{word}_{name}"]).view(DTYPES[word]).float() for name in "ab")
    begin, end = (torch.tensor(SEEN[f"core_{word}_{name}"]) for name in "cd")
    least = FORMATS[word].min_exponent
    for policy in (CUT, replace(CUT, cut_products=False)):
        total = Sum(policy, torch.zeros_like(begin), begin.clone())
        total.add(slice(None), Factor(left, least=least), Factor(right.T, least=least))
        found = float((total.value() == end).double().mean())
        assert found == 1.0 if policy == CUT else found < 0.5
    zeros = torch.arange(128) >= 70
    left, right = left.masked_fill(zeros, 0.0), right.T.masked_fill(zeros[:, None], 0.0)
    short, padded = (
        product(CUT, Factor(left[:, :end], least=least), Factor(right[:end], least=least)) for end in (70, 128)
    )
    assert torch.equal(short, padded)


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
