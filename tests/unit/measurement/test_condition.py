"""Condition numbers are what their formulas say, every term written out, and foretell measured errors."""

import numpy as np
import pandas as pd
import pytest
import torch

from accuracy.core.case import Problem
from accuracy.core.dtype import FORMATS, effective_dtype
from accuracy.inputs.drawing import Inputs
from accuracy.measurement import condition
from accuracy.measurement.observe import reference_of
from accuracy.measurement.targets import Targets
from tests.measuring import measure

PROBLEMS = {
    "causal": Problem(2, 7, 4, 2, 3, "causal", 0.7),
    "full": Problem(1, 6, 2, 2, 3, "full", 0.7),
    "cross": Problem(1, 8, 2, 1, 3, "causal", 0.7, seqlen_q=3),
    "top_left": Problem(1, 8, 2, 1, 3, "causal_top_left", 0.7, seqlen_q=3),
    "window": Problem(1, 8, 2, 1, 3, "causal", 0.7, window=2),
    "documents": Problem(1, 8, 2, 1, 3, "causal", 0.7, documents=(3, 5)),
    "softcap": Problem(1, 7, 2, 1, 3, "causal", 0.7, softcap=1.5),
}


def inputs_of(problem: Problem) -> Inputs:
    generator = torch.Generator().manual_seed(3)
    sizes = {"q": (problem.queries, problem.heads), "k": (problem.seqlen, problem.heads_kv)}
    sizes |= {"v": sizes["k"], "dout": sizes["q"]}
    shapes = {name: (problem.batch, *size, problem.head_dim) for name, size in sizes.items()}
    return Inputs(**{n: torch.randn(shape, generator=generator, dtype=torch.float64) for n, shape in shapes.items()})


def sees(problem: Problem, query: int, key: int) -> bool:
    place = query + problem.query_offset
    inside = problem.window is None or abs(place - key) <= problem.window
    borders = np.cumsum(problem.documents)
    same = not problem.documents or np.searchsorted(borders, place, "right") == np.searchsorted(borders, key, "right")
    return inside and bool(same) and (not problem.causal or key <= place)


def by_definition(problem: Problem, inputs: Inputs) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
    """Sums of absolute terms and of squared errors in token layout, and softmax's condition: every term written out,
    (B, H, Sq, S, D), in 64 bits of significand."""
    q, k, v, dout = (x.numpy().astype(np.longdouble).transpose(0, 2, 1, 3) for x in inputs.tensors)
    k, v = (x.repeat(problem.heads // problem.heads_kv, 1)[:, :, None] for x in (k, v))
    q, dout = q[:, :, :, None], dout[:, :, :, None]
    seen = np.array([[sees(problem, i, j) for j in range(problem.seqlen)] for i in range(problem.queries)])
    scale = np.longdouble(problem.softmax_scale)
    s = scale * (q * k).sum(-1)
    slope = np.ones_like(s)
    if problem.softcap is not None:
        slope = 1 - np.tanh(s / problem.softcap) ** 2
        s = problem.softcap * np.tanh(s / problem.softcap)
    p, size = np.where(seen, np.exp(s), 0.0), np.where(seen, np.abs(s), 0.0)
    total = p.sum(-1)
    p = p / total[..., None]
    jacobian = np.eye(problem.seqlen) * p[..., None] - p[..., None] * p[..., None, :]  # diag(p) - p p^T
    softmax = np.abs(jacobian).sum(-1).max(-1) * size.max(-1) / p.max(-1)

    out = p[..., None] * v
    delta, dv = dout * out, p[..., None] * dout
    of_delta = (dout[:, :, :, 0] ** 2 * ((out**2).sum(3) + out.sum(3) ** 2)).sum(-1)
    ds = slope * p * ((dout * v).sum(-1) - delta.sum((3, 4))[..., None])
    dq, dk = scale * ds[..., None] * k, scale * ds[..., None] * q
    by_delta = scale * (slope * p)[..., None]
    of_row = of_delta[..., None, None]

    def keys(x: np.ndarray) -> np.ndarray:
        return x.sum(2).reshape(problem.batch, problem.heads_kv, -1, *x.shape[3:]).sum(2)

    absolute = {
        "out": np.abs(out).sum(3), "lse": 1 + (p * size).sum(-1), "delta": np.abs(delta).sum((3, 4)),
        "dq": np.abs(dq).sum(3), "dk": keys(np.abs(dk)), "dv": keys(np.abs(dv)),
    }  # fmt: skip
    squares = {
        "out": (out**2).sum(3) + out.sum(3) ** 2, "lse": (p**2 * (1 + size**2)).sum(-1) + np.log(total) ** 2,
        "delta": of_delta, "dv": keys(dv**2) + keys(dv) ** 2,
        "dq": (dq**2).sum(3) + of_row[..., 0] * (by_delta * k).sum(3) ** 2 + dq.sum(3) ** 2,
        "dk": keys(dk**2 + of_row * (by_delta * q) ** 2) + keys(dk) ** 2,
    }  # fmt: skip
    tokens = [{name: x.swapaxes(1, 2).astype(float) for name, x in each.items()} for each in (absolute, squares)]
    return tokens[0], tokens[1], softmax.swapaxes(1, 2).astype(float)


def compare(name: str) -> None:
    """Float64 sums of fewer than 100 terms: 100 units of 2^-53 of what they add up, times the reference's own 1e-14."""
    problem = PROBLEMS[name]
    inputs = inputs_of(problem)
    targets = Targets.of(inputs, reference_of(problem, inputs), "float64")
    found = condition.magnitudes(problem, inputs, targets.reference)
    absolute, squares, softmax = by_definition(problem, inputs)
    for got, exact in ((found.absolute, absolute), (found.squares, squares)):
        for tensor, values in exact.items():
            np.testing.assert_allclose(got[tensor].numpy(), values, rtol=1e-12, atol=1e-14, err_msg=tensor)
    np.testing.assert_allclose(found.softmax.numpy(), softmax, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", PROBLEMS)
def test_sums_and_softmax_are_those_of_the_definitions_also_in_blocks_of_rows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(name)
    for size, value in (("BLOCK_ELEMENTS", 16), ("TOGETHER", 1)):
        monkeypatch.setattr(condition, size, value)
        compare(name)


def test_a_slip_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, of_heads, scores = condition.seen_keys, condition._of_heads, condition._scores
    for name, function, slip in (
        ("causal", "seen_keys", lambda *args, **how: seen(*args, **how).clamp(max=args[1] - 1)),
        ("causal", "_of_heads", lambda *args: of_heads(*args).flip(0)),
        ("softcap", "_scores", lambda *args: (scores(*args)[0], 1.0)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(condition, function, slip)
            with pytest.raises(AssertionError):
                compare(name)


def rows(*words: str) -> pd.DataFrame:
    return measure("variant=ring", "kernel=eager", "conditions=true", "dtype=float32", *words)


def test_a_rank_s_numbers_are_the_ratios_of_its_own_elements() -> None:
    """All ranks together are what one rank of everything is, and two ranks what their halves are."""
    one, two = rows("world_size=1"), rows("world_size=2")
    whole = [found[found["rank"] == -1].set_index("tensor") for found in (one, two)]
    for name in ("condition_softmax", "condition_sum", "condition_rounding"):
        assert np.allclose(whole[0][name], whole[1][name], rtol=1e-12)
        halves = two[(two["rank"] >= 0) & (two["tensor"] == "out")][name]
        assert halves.min() < whole[1].loc["out", name] < halves.max()


def test_one_rounding_of_each_term_explains_the_measured_errors() -> None:
    """Errors of u / sqrt(6) in every term and in the result make 0.41 of condition_rounding x u. Half of that to twice
    that is asked: a term may be rounded in a binade's upper half only, or be exact (a weight of 1), or twice."""
    inputs = "gaussian,outliers,uniform,tied,attention_sink,rising_maxima,heavy_channels"
    found = measure(f"inputs=[{inputs}]", "variant=single_device", "world_size=1", "kernel=eager", "conditions=true",
                    "dtype=[bfloat16,float16]", "problem.head_dim=32", "problem.seqlen=128")  # fmt: skip
    found = found[(found["rank"] == -1) & found["tensor"].isin(["out", "dq", "dk", "dv"])]
    unit = [FORMATS[effective_dtype(row.tensor, row.dtype)].unit_roundoff for row in found.itertuples()]
    quotient = found["error_rel"] / (found["condition_rounding"] * unit) * 6**0.5
    assert quotient.between(0.5, 2).all(), found.assign(quotient=quotient)[["inputs", "tensor", "quotient"]]
