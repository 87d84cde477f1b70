"""The reference is right to its last digits, and stands alone."""

import ast
import math
from pathlib import Path

import pytest
import torch

from accuracy.reference import float64
from accuracy.reference.float64 import attention
from tests.reference.exact import MASKS, TENSORS, exact, head, problem, relative_error


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [0.1, 1 / math.sqrt(8)])
def test_agrees_with_fifty_digits_to_1e_14(causal: bool, scale: float) -> None:
    """1e-14 is 90 units of float64: workspace for sums of 24 terms and exp, none for a scale or a sum in float32."""
    q, k, v, dout = problem(seed=3, heads=1)
    reference = attention(q, k, v, dout, scale=scale, causal=causal)
    expected = exact(q[0, :, 0], k[0, :, 0], v[0, :, 0], dout[0, :, 0], scale, causal)
    for name in TENSORS:
        assert relative_error(head(reference, name, 0), expected[name]) < 1e-14, name


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


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [1, 5, 23])
def test_fewer_queries_than_keys_agree_with_fifty_digits(queries: int, causal: bool) -> None:
    q, k, v, dout = problem(seed=3, heads=1)
    q, dout = q[:, :queries], dout[:, :queries]
    reference = attention(q, k, v, dout, scale=0.1, causal=causal)
    expected = exact(q[0, :, 0], k[0, :, 0], v[0, :, 0], dout[0, :, 0], 0.1, causal)
    for name in TENSORS:
        assert relative_error(head(reference, name, 0), expected[name]) < 1e-14, name


def test_more_queries_than_keys_agree_with_fifty_digits() -> None:
    q, k, v, dout = problem(seed=3, heads=1)
    k, v = k[:, :7], v[:, :7]
    reference = attention(q, k, v, dout, scale=0.1, causal=False)
    expected = exact(q[0, :, 0], k[0, :, 0], v[0, :, 0], dout[0, :, 0], 0.1, False)
    for name in TENSORS:
        assert relative_error(head(reference, name, 0), expected[name]) < 1e-14, name


@pytest.mark.parametrize("rows", [5, 1024])
@pytest.mark.parametrize("name", MASKS)
def test_windows_documents_and_caps_agree_with_fifty_digits(name: str, rows: int, monkeypatch) -> None:
    """In blocks of 5 rows and in one."""
    how, sees = MASKS[name]
    monkeypatch.setattr(float64, "BLOCK_ELEMENTS", 24 * rows)
    q, k, v, dout = problem(seed=3, heads=1)
    reference = attention(q, k, v, dout, scale=0.3, **how)
    expected = exact(q[0, :, 0], k[0, :, 0], v[0, :, 0], dout[0, :, 0], 0.3, None, sees, how.get("softcap"))
    for tensor in TENSORS:
        assert relative_error(head(reference, tensor, 0), expected[tensor]) < 1e-14, tensor


@pytest.mark.parametrize(("queries", "keys"), [(7, 24), (24, 7)])
def test_masks_aligned_at_the_top_left_agree_with_fifty_digits(queries: int, keys: int) -> None:
    """With 7 queries, 17 keys are seen by none: their gradients are 0."""
    q, k, v, dout = problem(seed=3, heads=1)
    q, dout, k, v = q[:, :queries], dout[:, :queries], k[:, :keys], v[:, :keys]
    reference = attention(q, k, v, dout, scale=0.3, causal=True, top_left=True)
    expected = exact(q[0, :, 0], k[0, :, 0], v[0, :, 0], dout[0, :, 0], 0.3, None, lambda i, j: j <= i)
    for tensor in TENSORS:
        assert relative_error(head(reference, tensor, 0), expected[tensor]) < 1e-14, tensor


def test_a_query_without_a_key_is_refused() -> None:
    q, k, v, dout = problem(seed=3, heads=1)
    with pytest.raises(ValueError, match="24 queries on 7 keys"):
        attention(q, k[:, :7], v[:, :7], dout, scale=0.1, causal=True)


def test_a_mask_aligned_at_the_top_left_would_be_seen() -> None:
    """The planted fault: the square problem's first rows, which is what the other alignment computes."""
    q, k, v, dout = problem(seed=3, heads=1)
    reference = attention(q, k, v, dout, scale=0.1, causal=True)
    expected = exact(q[0, :5, 0], k[0, :, 0], v[0, :, 0], dout[0, :5, 0], 0.1, True)
    assert relative_error(reference.lse[0, 0, :5], expected["lse"]) > 0.1


def test_a_scale_in_float32_would_be_seen() -> None:
    """The planted fault: 0.1 rounded to float32 is wrong by 1.5e-8, a million times the bound."""
    q, k, v, dout = problem(seed=3, heads=1)
    reference = attention(q, k, v, dout, scale=float(torch.tensor(0.1, dtype=torch.float32)), causal=True)
    expected = exact(q[0, :, 0], k[0, :, 0], v[0, :, 0], dout[0, :, 0], 0.1, True)
    assert relative_error(head(reference, "lse", 0), expected["lse"]) > 1e-10


def test_query_heads_share_their_key_head_and_batch_items_are_apart() -> None:
    q, k, v, dout = problem(seed=1, heads=4, heads_kv=2, batch=2, length=12)
    reference = attention(q, k, v, dout, scale=0.3, causal=True)
    for item in range(2):
        for index in range(4):
            alone = attention(
                q[item : item + 1, :, index : index + 1], k[item : item + 1, :, index // 2 : index // 2 + 1],
                v[item : item + 1, :, index // 2 : index // 2 + 1], dout[item : item + 1, :, index : index + 1],
                scale=0.3, causal=True,
            )  # fmt: skip
            assert torch.equal(reference.out[item, :, index], alone.out[0, :, 0])
            assert torch.equal(reference.dq[item, :, index], alone.dq[0, :, 0])


@pytest.mark.parametrize("causal", [True, False])
def test_probe_equal_scores(causal: bool) -> None:
    """Q = 0: lse is ln of the number of visible keys and out is the mean of their values."""
    q, k, v, dout = problem(seed=2)
    reference = attention(torch.zeros_like(q), k, v, dout, scale=0.5, causal=causal)
    length = q.shape[1]
    seen = torch.arange(1, length + 1).double() if causal else torch.full((length,), float(length)).double()
    means = (v[0, :, 0].double().cumsum(0) if causal else v[0, :, 0].double().sum(0)) / seen[:, None]
    assert torch.allclose(reference.lse[0, 0], seen.log(), rtol=0, atol=2**-50)  # ln 24 < 4: 4 units of 2^-52
    assert torch.allclose(reference.out[0, :, 0], means, rtol=0, atol=24 * 2**-52)  # a sum of 24 values below 4


def test_probe_constant_values_have_no_gradient_of_scores() -> None:
    """V = 1: out is 1 whatever the scores; then dP - delta is 0, so dq = dk = 0 up to the rounding of sum P."""
    q, k, v, dout = problem(seed=2)
    reference = attention(q, k, torch.ones_like(v), dout, scale=0.5, causal=True)
    assert (reference.out - 1).abs().max() < 24 * 2**-53
    assert reference.dq.abs().max() < 1e-13  # |dP| <= 30, |k| <= 4, 24 keys, u = 1.1e-16
    assert reference.dk.abs().max() < 1e-13


def test_blocks_of_rows_do_not_change_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, dout = problem(seed=5, length=50)
    q, dout = q[:, :40], dout[:, :40]
    whole = attention(q, k, v, dout, scale=0.3, causal=True)
    monkeypatch.setattr(float64, "BLOCK_ELEMENTS", 50 * 7)
    parts = attention(q, k, v, dout, scale=0.3, causal=True)
    for name in TENSORS:
        error = (getattr(parts, name) - getattr(whole, name)).norm() / getattr(whole, name).norm()
        assert error < 1e-15 * 10, name  # another order of summation of 50 terms: a few u


def test_refuses_tf32_and_autocast() -> None:
    q, k, v, dout = problem(seed=0)
    torch.backends.cuda.matmul.allow_tf32 = True
    with pytest.raises(RuntimeError, match="TF32"):
        attention(q, k, v, dout, scale=1.0, causal=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="autocast"):
        attention(q, k, v, dout, scale=1.0, causal=True)


def test_shares_no_code_with_variants_or_kernels() -> None:
    """By its imports: nothing of the package at all."""
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
