import ast
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy.reference import float64
from accuracy.reference.float64 import attention
from tests.reference.exact import MASKS, TENSORS, exact, head, problem, relative_error

Sees = Callable[[int, int], bool]


PROBLEMS: dict[str, tuple[int, int, dict[str, Any], Sees | None]] = {  # queries, keys, how, which key a query sees
    "causal": (24, 24, {"causal": True, "scale": 0.1}, None),
    "full": (24, 24, {"causal": False, "scale": 1 / math.sqrt(8)}, None),
    "one query": (1, 24, {"causal": True}, None),
    "fewer queries": (23, 24, {"causal": True}, None),
    "fewer queries, full": (5, 24, {"causal": False}, None),
    "more queries, full": (24, 7, {"causal": False}, None),
    "top left": (24, 7, {"causal": True, "top_left": True}, lambda i, j: j <= i),
    "top left, keys that none sees": (7, 24, {"causal": True, "top_left": True}, lambda i, j: j <= i),
    **{name: (24, 24, how, sees) for name, (how, sees) in MASKS.items()},
}


WIDTHS = {"wider values": (5, 8), "narrower values": (8, 3)}  # head dims of q and k, of v and dout


@pytest.mark.parametrize("name", [*PROBLEMS, *WIDTHS])
def test_agrees_with_fifty_digits_to_1e_14(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 5 rows and in one. 1e-14 is 90 units of float64: enough for sums of 24 terms and exp, not for a
    scale or a sum in float32."""
    queries, keys, how, sees = PROBLEMS.get(name, PROBLEMS["causal"])
    width, width_v = WIDTHS.get(name, (8, 8))
    how = {"scale": 0.3, **how}
    q, k, v, dout = problem(seed=3, heads=1)
    q, dout, k, v = q[:, :queries], dout[:, :queries], k[:, :keys], v[:, :keys]
    q, k, v, dout = q[..., :width], k[..., :width], v[..., :width_v], dout[..., :width_v]
    one_head = (x[0, :, 0] for x in (q, k, v, dout))
    expected = exact(*one_head, how["scale"], how["causal"], sees, how.get("softcap"))
    for rows in (5, 1024):
        monkeypatch.setattr(float64, "BLOCK_ELEMENTS", keys * rows)
        reference = attention(q, k, v, dout, **how)
        for tensor in TENSORS:
            assert relative_error(head(reference, tensor, 0), expected[tensor]) < 1e-14, (rows, tensor)


def test_sinks_agree_with_fifty_digits_to_1e_14() -> None:
    """A sink below all scores of most rows, one between them, one far above; dsink sums terms of both signs: times how
    much they cancel."""
    q, k, v, dout = problem(seed=3, heads=3)
    sinks = (-2.0, 0.5, 40.0)
    reference = attention(q, k, v, dout, scale=0.3, causal=True, sinks=sinks)
    for number, sink in enumerate(sinks):
        expected = exact(q[0, :, number], k[0, :, 0], v[0, :, 0], dout[0, :, number], 0.3, True, sink=sink)
        for tensor in ("out", "lse", "dq", "delta"):
            assert relative_error(head(reference, tensor, number), expected[tensor]) < 1e-14, (sink, tensor)
        terms = (sink - reference.lse[0, number]).exp() * reference.delta[0, number]
        cancels = float(terms.abs().sum() / terms.sum().abs())
        assert relative_error(reference.dsink[0, 0, number], expected["dsink"]) < 1e-14 * cancels, sink


def test_dropout_agrees_with_fifty_digits_to_1e_14(monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 5 rows and in one. Factors that are no mask at all, so that one of another place would be seen; with
    a sink and a window."""
    q, k, v, dout = problem(seed=3, heads=2)
    factors = torch.rand(2, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    window, sees = MASKS["window"]
    for number in range(2):
        tensors = q[0, :, number], k[0, :, 0], v[0, :, 0], dout[0, :, number]
        expected = exact(*tensors, 0.3, True, sees, sink=0.5, factors=factors[number].tolist())
        for rows in (5, 1024):
            monkeypatch.setattr(float64, "BLOCK_ELEMENTS", 24 * rows)
            reference = attention(
                q, k, v, dout, scale=0.3, **window, sinks=(0.5, 0.5),
                dropped=lambda item, number, queries, keys: factors[number, queries, keys],
            )  # fmt: skip
            for tensor in ("out", "lse", "dq", "delta"):
                assert relative_error(head(reference, tensor, number), expected[tensor]) < 1e-14, (rows, tensor)


@pytest.mark.parametrize("causal", [True, False])
def test_on_peaked_logits_the_error_stays_within_the_condition_number(causal: bool) -> None:
    """exp turns an absolute error u |s| of a score into a relative one of P, and dS = P (dP - delta) cancels: the
    1e-14 of the easy case times largest score times ||P (|dP| + |delta|)|| / ||dS||."""
    q, k, v, dout = problem(seed=3, heads=1, spread=4.0)
    reference = attention(q, k, v, dout, scale=0.3, causal=causal)
    expected = exact(q[0, :, 0], k[0, :, 0], v[0, :, 0], dout[0, :, 0], 0.3, causal)
    query, key, value, gradient = (x[0, :, 0].double() for x in (q, k, v, dout))
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
    q, k, v, dout = problem(seed=3, heads=1)
    for rows, scale, least in ((5, 0.1, 0.1), (24, float(torch.tensor(0.1, dtype=torch.float32)), 1e-10)):
        lse = attention(q, k, v, dout, scale=scale, causal=True).lse[0, 0, :rows]
        expected = exact(q[0, :rows, 0], k[0, :, 0], v[0, :, 0], dout[0, :rows, 0], 0.1, True)
        assert relative_error(lse, expected["lse"]) > least


def test_query_heads_share_their_key_head_and_batch_items_are_apart() -> None:
    q, k, v, dout = problem(seed=1, heads=4, heads_kv=2, batch=2, length=12)
    reference = attention(q, k, v, dout, scale=0.3, causal=True)
    for item, index in product(range(2), range(4)):
        own = (
            x[item : item + 1, :, [place]] for x, place in ((q, index), (k, index // 2), (v, index // 2), (dout, index))
        )
        alone = attention(*own, scale=0.3, causal=True)
        assert torch.equal(reference.out[item, :, index], alone.out[0, :, 0])
        assert torch.equal(reference.dq[item, :, index], alone.dq[0, :, 0])


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
    q, k, v, dout = problem(seed=4, heads=4, heads_kv=2, batch=2, length=512, dim=64)
    here = attention(q, k, v, dout, scale=0.125, causal=causal)
    there = attention(q.cuda(), k.cuda(), v.cuda(), dout.cuda(), scale=0.125, causal=causal)
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
    generator = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(2, 9, heads, 8, generator=generator) for heads in (4, 2, 2, 4))
    causal = float64.attention(q, k, v, dout, scale=0.3, causal=True)
    seen = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    least = torch.zeros(1, 1, 9, 9).masked_fill(~seen, torch.finfo(torch.float32).min)
    for mask in (seen, least, least.masked_fill(~seen, -torch.inf).expand(2, 4, 9, 9)):
        found = float64.attention(q, k, v, dout, scale=0.3, causal=False, mask=mask)
        for name in ("out", "lse", "dq", "dk", "dv"):
            torch.testing.assert_close(getattr(found, name), getattr(causal, name), rtol=1e-14, atol=1e-14)
    blind = seen.clone()
    blind[..., 4, :] = False
    found = float64.attention(q, k, v, dout, scale=0.3, causal=False, mask=blind)
    assert found.out[:, 4].abs().sum() == found.dq[:, 4].abs().sum() == 0
    assert found.lse[..., 4].isneginf().all()
    buried = float64.attention(q, k, v, dout, scale=0.3, causal=False, mask=torch.full_like(least, least.min()))
    torch.testing.assert_close(  # scores are absorbed: weights are equal
        buried.out[:, 0, 0], v[:, :, 0].double().mean(1), rtol=1e-14, atol=1e-14
    )


def test_a_row_whose_keys_are_all_masked_by_large_numbers_has_its_sink_alone() -> None:
    q, k, v, dout = problem(5, heads=1, length=4)
    mask = torch.zeros(1, 1, 4, 4)
    mask[0, 0, 1] = torch.finfo(torch.float32).min
    found = attention(q, k, v, dout, scale=0.3, causal=False, sinks=(0.5,), mask=mask)
    assert float(found.lse[0, 0, 1]) == pytest.approx(0.5, rel=1e-14)
    assert bool((found.out[0, 1] == 0).all())
    assert bool((found.dq[0, 1] == 0).all())
