"""Sums of 8-bit products as Hopper's tensor core has them (arXiv 2511.10909), against an H200's own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from accuracy.core.quantisation import FORMATS, Policy
from accuracy.kernel.lowp.quantised import KERNEL
from accuracy.kernel.lowp.tensor_core import Factor, Sum, product
from tests.contract.kernel.problem import Problem, results

CUT = Policy(accumulator_bits=14, cut_products=True)
DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

SEEN = np.load(Path(__file__).parent / "h200.npz")
"""Codes and sums of an H200: `core_*` by Triton 3.6 (d = c + a b^T), the others by cuDNN 9.19's e4m3 attention of
128 causal tokens of a head of 128, its scales as the adapter chooses them."""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("word", DTYPES)
def test_an_h200_s_tensor_core_has_these_very_sums(word: str, device: str) -> None:
    """16 x 16 sums of 128 terms, begun from values of any size: equal bits. Without the cut of products most differ. A
    step of 32 that ends early is one with zeros."""
    left, right, begin, end = (torch.tensor(SEEN[f"core_{word}_{name}"], device=device) for name in "abcd")
    left, right = (x.view(DTYPES[word]).float() for x in (left, right))
    least = FORMATS[word].min_exponent
    for policy in (CUT, replace(CUT, cut_products=False)):
        total = Sum(policy, torch.zeros_like(begin), begin.clone())
        total.add(slice(None), Factor(left, least=least), Factor(right.T, least=least))
        found = float((total.value() == end).double().mean())
        assert found == 1.0 if policy == CUT else found < 0.5
    zeros = torch.arange(128, device=device) >= 70
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
