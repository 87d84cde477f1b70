import ast
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy.reference import float64
from accuracy.reference.float64 import attention
from tests.contract.reference.exact import TENSORS, exact, head, of_head, problem, relative_error

PROBLEMS: dict[str, tuple[int, int, dict[str, Any], Callable[[int, int], bool] | None]] = {
    # queries, keys, how, which key a query sees
    "causal": (24, 24, {"scale": 0.1}, None),
    "full": (24, 24, {"causal": False, "scale": 1 / math.sqrt(8)}, None),
    "one query": (1, 24, {}, None),
    "fewer queries": (23, 24, {}, None),
    "fewer queries, full": (5, 24, {"causal": False}, None),
    "more queries, full": (24, 7, {"causal": False}, None),
    "top left": (24, 7, {"top_left": True}, lambda i, j: j <= i),
    "top left, keys that none sees": (7, 24, {"top_left": True}, lambda i, j: j <= i),
    "window": (24, 24, {"window": 5}, lambda i, j: i - 5 <= j <= i),
    "window to both sides": (24, 24, {"causal": False, "window": 3}, lambda i, j: abs(i - j) <= 3),
    "documents": (24, 24, {"documents": (5, 1, 18)}, lambda i, j: j <= i and (i < 5) == (j < 5)
                  and (i < 6) == (j < 6)),
    "window in documents": (24, 24, {"causal": False, "window": 2, "documents": (10, 14)},
                            lambda i, j: abs(i - j) <= 2 and (i < 10) == (j < 10)),
    "capped": (24, 24, {"softcap": 0.75}, None),
    "capped window": (24, 24, {"softcap": 2.5, "window": 4}, lambda i, j: i - 4 <= j <= i),
    "sink and window": (24, 24, {"sinks": (0.5,), "window": 5}, lambda i, j: i - 5 <= j <= i),
    "wider values": (24, 24, {}, None),
    "narrower values": (24, 24, {}, None),
}  # fmt: skip
WIDTHS = {"wider values": (5, 8), "narrower values": (8, 3)}  # head dims of q and k, of v and dout


@pytest.mark.parametrize("name", PROBLEMS)
def test_agrees_with_fifty_digits_to_1e_14(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 5 rows and in one. 1e-14 is 90 units of float64: enough for sums of 24 terms and exp, not for a
    scale or a sum in float32."""
    queries, keys, how, sees = PROBLEMS[name]
    width, width_v = WIDTHS.get(name, (8, 8))
    how = {"scale": 0.3, "causal": True, **how}
    q, k, v, dout = problem(seed=3, heads=1)
    q, dout, k, v = q[:, :queries], dout[:, :queries], k[:, :keys], v[:, :keys]
    q, k, v, dout = q[..., :width], k[..., :width], v[..., :width_v], dout[..., :width_v]
    features = {"cap": how.get("softcap"), "sink": how.get("sinks", [None])[0]}
    expected = exact(*of_head(0, q, k, v, dout), how["scale"], how["causal"], sees, **features)
    for rows in (5, 1024):
        monkeypatch.setattr(float64, "BLOCK_ELEMENTS", keys * rows)
        reference = attention(q, k, v, dout, **how)
        for tensor in TENSORS:
            assert relative_error(head(reference, tensor, 0), expected[tensor]) < 1e-14, (rows, tensor)


def test_sinks_agree_with_fifty_digits_to_1e_14() -> None:
    """A sink below all scores of most rows, one between them, one far above; dsink sums terms of both signs: times how
    much they cancel."""
    tensors, sinks = problem(seed=3, heads=3), (-2.0, 0.5, 40.0)
    reference = attention(*tensors, scale=0.3, causal=True, sinks=sinks)
    for number, sink in enumerate(sinks):
        expected = exact(*of_head(number, *tensors), 0.3, True, sink=sink)
        for tensor in ("out", "lse", "dq", "delta"):
            assert relative_error(head(reference, tensor, number), expected[tensor]) < 1e-14, (sink, tensor)
        terms = (sink - reference.lse[0, number]).exp() * reference.delta[0, number]
        cancels = float(terms.abs().sum() / terms.sum().abs())
        assert relative_error(reference.dsink[0, 0, number], expected["dsink"]) < 1e-14 * cancels, sink


@pytest.mark.parametrize("causal", [True, False])
def test_on_peaked_logits_the_error_stays_within_the_condition_number(causal: bool) -> None:
    """exp turns an absolute error u |s| of a score into a relative one of P, and dS = P (dP - delta) cancels: the
    1e-14 of the easy case times largest score times ||P (|dP| + |delta|)|| / ||dS||."""
    tensors = problem(seed=3, heads=1, spread=4.0)
    reference = attention(*tensors, scale=0.3, causal=causal)
    expected = exact(*of_head(0, *tensors), 0.3, causal)
    query, key, value, gradient = (x.double() for x in of_head(0, *tensors))
    scores = 0.3 * query @ key.T
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    weights, dp = scores.softmax(-1), gradient @ value.T
    delta = (weights * dp).sum(-1, keepdim=True)
    cancellation = (weights * (dp.abs() + delta.abs())).norm() / (weights * (dp - delta)).norm()
    largest = scores[scores.isfinite()].abs().max()
    for name in TENSORS:
        condition = largest * (cancellation if name in ("dq", "dk") else 1.0)
        assert relative_error(head(reference, name, 0), expected[name]) < 1e-14 * condition, name


def test_another_alignment_and_a_scale_in_float32_would_be_seen() -> None:
    """The planted faults: the square problem's first rows are what the other alignment computes; 0.1 rounded to float32
    is wrong by 1.5e-8, a million times the bound."""
    tensors = problem(seed=3, heads=1)
    for rows, scale, least in ((5, 0.1, 0.1), (24, float(torch.tensor(0.1, dtype=torch.float32)), 1e-10)):
        lse = attention(*tensors, scale=scale, causal=True).lse[0, 0, :rows]
        q, k, v, dout = of_head(0, *tensors)
        assert relative_error(lse, exact(q[:rows], k, v, dout[:rows], 0.1, True)["lse"]) > least


def test_refuses_queries_without_keys_tf32_and_autocast() -> None:
    q, k, v, dout = problem(seed=0)
    with pytest.raises(ValueError, match="24 queries on 7 keys"):
        attention(q, k[:, :7], v[:, :7], dout, scale=0.1, causal=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    with pytest.raises(RuntimeError, match="TF32"):
        attention(q, k, v, dout, scale=1.0, causal=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="autocast"):
        attention(q, k, v, dout, scale=1.0, causal=True)


def test_shares_no_code_with_variants_or_kernels() -> None:
    tree = ast.parse(Path(float64.__file__).read_text())
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not {name for name in modules if name.startswith("accuracy")}


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False])
def test_the_gpu_agrees_with_the_cpu(causal: bool) -> None:
    """Two machines' float64: both within 1e-14 of the exact values, so within 2e-14 of each other."""
    tensors = problem(seed=4, heads=4, heads_kv=2, batch=2, length=512, dim=64)
    here = attention(*tensors, scale=0.125, causal=causal)
    there = attention(*(x.cuda() for x in tensors), scale=0.125, causal=causal)
    for name in TENSORS:
        a, b = getattr(here, name), getattr(there, name).cpu()
        assert (a - b).norm() / a.norm() < 2e-14, name


@pytest.mark.gpu
def test_memory_is_linear_in_the_sequence() -> None:
    """Above inputs and outputs at most 4 GiB at S = 32768, H = 8, D = 128; S x S scores alone would be 64 GiB."""
    q, k, v, dout = (torch.randn(1, 32768, 8, 128, dtype=torch.bfloat16, device="cuda") for _ in range(4))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    reference = attention(q, k, v, dout, scale=0.1, causal=True)
    outputs = sum(getattr(reference, name).nbytes for name in TENSORS)
    assert torch.cuda.max_memory_allocated() - before - outputs <= 4 * 2**30


def test_a_mask_tensor_says_what_words_say_and_more() -> None:
    """A row without a key is empty; where large numbers absorb all scores, weights are equal, or the sink's alone."""
    generator, near = torch.Generator().manual_seed(0), {"rtol": 1e-14, "atol": 1e-14}
    q, k, v, dout = (torch.randn(2, 9, heads, 8, generator=generator) for heads in (4, 2, 2, 4))
    causal = attention(q, k, v, dout, scale=0.3, causal=True)
    seen = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    least = torch.zeros(1, 1, 9, 9).masked_fill(~seen, torch.finfo(torch.float32).min)
    for mask in (seen, least, least.masked_fill(~seen, -torch.inf).expand(2, 4, 9, 9)):
        found = attention(q, k, v, dout, scale=0.3, causal=False, mask=mask)
        for name in ("out", "lse", "dq", "dk", "dv"):
            torch.testing.assert_close(getattr(found, name), getattr(causal, name), **near)
    blind, buried = seen.clone(), torch.full_like(least, least.min())
    blind[..., 4, :] = False
    found = attention(q, k, v, dout, scale=0.3, causal=False, mask=blind)
    assert found.out[:, 4].abs().sum() == found.dq[:, 4].abs().sum() == 0
    assert found.lse[..., 4].isneginf().all()
    found = attention(q, k, v, dout, scale=0.3, causal=False, mask=buried)
    torch.testing.assert_close(found.out[:, 0, 0], v[:, :, 0].double().mean(1), **near)
    found = attention(q, k, v, dout, scale=0.3, causal=False, mask=buried, sinks=(0.5,) * 4)
    torch.testing.assert_close(found.lse, torch.full_like(found.lse, 0.5), **near)
    assert bool((found.out == 0).all())
    assert bool((found.dq == 0).all())
