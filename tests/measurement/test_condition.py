"""Condition numbers are what their formulas say, by loops over elements in 30 digits, and foretell measured errors."""

import itertools
from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np
import pandas as pd
import pytest
import torch

from accuracy.core.case import Problem
from accuracy.core.dtype import FORMATS, effective_dtype
from accuracy.inputs.drawing import Inputs
from accuracy.measurement import condition
from accuracy.measurement.targets import Targets
from accuracy.reference.choice import compute
from accuracy.results.table import TENSORS
from accuracy.runtime.dropout import Dropout
from tests.measuring import measure

PROBLEMS = {
    "causal": Problem(2, 7, 4, 2, 3, "causal", 0.7),
    "full": Problem(1, 6, 2, 2, 3, "full", 0.7),
    "cross": Problem(1, 8, 2, 1, 3, "causal", 0.7, seqlen_q=3),
    "top_left": Problem(1, 8, 2, 1, 3, "causal_top_left", 0.7, seqlen_q=3),
    "window": Problem(1, 8, 2, 1, 3, "causal", 0.7, window=2),
    "documents": Problem(1, 8, 2, 1, 3, "causal", 0.7, documents=(3, 5)),
    "softcap": Problem(1, 7, 2, 1, 3, "causal", 0.7, softcap=1.5),
    "dropout": Problem(2, 7, 2, 1, 3, "causal", 0.7, dropout=0.4),
}


SEED = 5


def dropout_of(problem: Problem) -> Dropout | None:
    if problem.dropout is None:
        return None
    return Dropout(problem.dropout, SEED).at(torch.arange(problem.queries), torch.arange(problem.seqlen))


def inputs_of(problem: Problem) -> Inputs:
    generator = torch.Generator().manual_seed(3)
    batch, length, queries, dim = problem.batch, problem.seqlen, problem.queries, problem.head_dim
    sizes = {"q": (queries, problem.heads), "k": (length, problem.heads_kv), "v": (length, problem.heads_kv)}
    sizes["dout"] = sizes["q"]
    drawn = {n: torch.randn(batch, *size, dim, generator=generator, dtype=torch.float64) for n, size in sizes.items()}
    return Inputs(**drawn)


def targets_of(problem: Problem) -> Targets:
    inputs = inputs_of(problem)
    return Targets.of(inputs, compute("torch", problem, inputs, SEED), "float64")


def sees(problem: Problem, query: int, key: int) -> bool:
    place = query + problem.query_offset
    inside = problem.window is None or abs(place - key) <= problem.window
    borders = np.cumsum(problem.documents)
    same = not problem.documents or np.searchsorted(borders, place, "right") == np.searchsorted(borders, key, "right")
    return inside and bool(same) and (not problem.causal or key <= place)


class Exact:
    """Sums over single terms, from the definitions, in 30 digits: absolute and squares by (tensor, element)."""

    def __init__(self, problem: Problem, inputs: Inputs) -> None:
        self.problem = problem
        self.q, self.k, self.v, self.dout = (x.numpy() for x in inputs.tensors)
        self.absolute: dict[Any, Any] = {}
        self.squares: dict[Any, Any] = {}
        self.result: dict[Any, Any] = {}
        self.softmax: dict[Any, Any] = {}
        self.factor = np.ones((problem.batch, problem.heads, problem.queries, problem.seqlen))
        if mask := dropout_of(problem):
            self.factor = mask.kept(range(problem.batch), problem.heads, inputs.q).numpy() * mask.scale
        with mpmath.workdps(30):
            for b, h, i in itertools.product(range(problem.batch), range(problem.heads), range(problem.queries)):
                self.row(b, h, i)
        for key, value in self.result.items():
            if key[0] != "delta":
                self.squares[key] += value**2

    def add(self, key: Any, terms: Sequence[Any], squares: Any = None) -> None:
        """squares: of the errors, where they are not the terms."""
        self.absolute[key] = self.absolute.get(key, 0) + sum(abs(term) for term in terms)
        self.squares[key] = self.squares.get(key, 0) + (sum(t**2 for t in terms) if squares is None else squares)
        self.result[key] = self.result.get(key, 0) + sum(terms)

    def row(self, b: int, h: int, i: int) -> None:
        problem, scale = self.problem, mpmath.mpf(self.problem.softmax_scale)
        g, dims = h // (problem.heads // problem.heads_kv), range(problem.head_dim)
        keys = [j for j in range(problem.seqlen) if sees(problem, i, j)]
        q, dout = ([mpmath.mpf(x) for x in each[b, i, h]] for each in (self.q, self.dout))
        k, v = ({j: [mpmath.mpf(x) for x in each[b, j, g]] for j in keys} for each in (self.k, self.v))
        s = {j: scale * sum(q[d] * k[j][d] for d in dims) for j in keys}
        slope = dict.fromkeys(keys, mpmath.mpf(1))
        if problem.softcap is not None:
            cap = mpmath.mpf(problem.softcap)
            slope = {j: 1 - mpmath.tanh(s[j] / cap) ** 2 for j in keys}
            s = {j: cap * mpmath.tanh(s[j] / cap) for j in keys}
        total = sum(mpmath.exp(s[j]) for j in keys)
        p = {j: mpmath.exp(s[j]) / total for j in keys}
        f = {j: mpmath.mpf(float(self.factor[b, h, i, j])) for j in keys}
        self.softmax[b, i, h] = self.jacobian_condition(s, p)
        self.absolute["lse", b, i, h] = 1 + sum(p[j] * abs(s[j]) for j in keys)
        self.squares["lse", b, i, h] = sum(p[j] ** 2 * (1 + s[j] ** 2) for j in keys)
        self.result["lse", b, i, h] = mpmath.log(total)
        for d in dims:
            self.add(("out", b, i, h, d), [f[j] * p[j] * v[j][d] for j in keys])
        of_delta = sum(dout[d] ** 2 * self.squares["out", b, i, h, d] for d in dims)
        of_delta += sum(dout[d] ** 2 * self.result["out", b, i, h, d] ** 2 for d in dims)
        self.add(("delta", b, i, h), [dout[d] * f[j] * p[j] * v[j][d] for d in dims for j in keys], of_delta)
        delta = self.result["delta", b, i, h]
        ds = {j: slope[j] * p[j] * (f[j] * sum(dout[d] * v[j][d] for d in dims) - delta) for j in keys}
        by_delta = {j: slope[j] * p[j] for j in keys}
        for d in dims:
            along_row = of_delta * (scale * sum(by_delta[j] * k[j][d] for j in keys)) ** 2
            terms = [scale * ds[j] * k[j][d] for j in keys]
            self.add(("dq", b, i, h, d), terms, sum(t**2 for t in terms) + along_row)
            for j in keys:
                term, other = scale * ds[j] * q[d], of_delta * (scale * by_delta[j] * q[d]) ** 2
                self.add(("dk", b, j, g, d), [term], term**2 + other)
                self.add(("dv", b, j, g, d), [f[j] * p[j] * dout[d]])

    @staticmethod
    def jacobian_condition(s: dict[int, Any], p: dict[int, Any]) -> Any:
        """|diag(p) - p p^T| |s| / |p| in the maximum norm, the matrix written out."""
        rows = [sum(abs((p[i] if i == j else 0) - p[i] * p[j]) for j in p) for i in p]
        return max(rows) * max(map(abs, s.values())) / max(p.values())


def compare(problem: Problem) -> None:
    """Float64 sums of fewer than 100 terms: 100 units of 2^-53 of what they add up, times the reference's own 1e-14."""
    targets = targets_of(problem)
    found = condition.magnitudes(problem, targets.inputs, targets.reference, dropout_of(problem))
    exact = Exact(problem, targets.inputs)
    for name, got in (("absolute", found.absolute), ("squares", found.squares)):
        for (tensor, *place), value in getattr(exact, name).items():
            assert float(got[tensor][tuple(place)]) == pytest.approx(float(value), rel=1e-12), (name, tensor, place)
    for place, value in exact.softmax.items():
        assert float(found.softmax[place]) == pytest.approx(float(value), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("name", PROBLEMS)
def test_sums_and_softmax_are_those_of_the_definitions(name: str) -> None:
    compare(PROBLEMS[name])


@pytest.mark.parametrize("name", ["causal", "documents"])
def test_blocks_of_rows_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condition, "BLOCK_ELEMENTS", 16)
    compare(PROBLEMS[name])


@pytest.mark.parametrize("slip", ["mask", "group", "cap"])
def test_a_slip_would_be_seen(slip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = {"mask": "causal", "group": "causal", "cap": "softcap"}[slip]
    if slip == "mask":
        seen = condition.seen_keys
        monkeypatch.setattr(condition, "seen_keys", lambda *args, **how: seen(*args, **how).clamp(max=args[1] - 1))
    elif slip == "group":
        add = condition._add_head
        monkeypatch.setattr(condition, "_add_head", lambda found, place, *rest: add(found, (*place[:2], 0), *rest))
    else:
        scores = condition._scores
        monkeypatch.setattr(condition, "_scores", lambda *args: (scores(*args)[0], 1.0))
    with pytest.raises(AssertionError):
        compare(PROBLEMS[name])


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
        assert halves.notna().all()


def test_without_being_asked_nothing_is_computed() -> None:
    found = measure("variant=single_device", "world_size=1", "kernel=eager", "dtype=float32")
    assert "condition_sum" not in found


INPUTS = ("gaussian", "outliers", "uniform", "tied", "attention_sink", "rising_maxima", "heavy_channels")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_one_rounding_of_each_term_explains_the_measured_errors(dtype: str) -> None:
    """Errors of u / sqrt(6) in every term and in the result make 0.41 of condition_rounding x u. Half of that to twice
    that is asked: a term may be rounded in a binade's upper half only, or be exact (a weight of 1), or twice."""
    found = measure(
        f"inputs=[{','.join(INPUTS)}]", "variant=single_device", "world_size=1", "kernel=eager", f"dtype={dtype}",
        "conditions=true", "problem.head_dim=32", "problem.seqlen=256",
    )  # fmt: skip
    found = found[(found["rank"] == -1) & found["tensor"].isin(["out", "dq", "dk", "dv"])]
    unit = [FORMATS[effective_dtype(tensor, dtype)].unit_roundoff for tensor in found["tensor"]]
    quotient = found["error_rel"] / (found["condition_rounding"] * unit) * 6**0.5
    assert quotient.between(0.5, 2).all(), found.assign(quotient=quotient)[["inputs", "tensor", "quotient"]]
    assert set(found["tensor"]) <= set(TENSORS)
