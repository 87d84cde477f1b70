"""What every kernel on disk promises on every device that is here: what it states it can do, it does, and rightly."""

import importlib.util
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from accuracy.config import find
from accuracy.core import plugins
from accuracy.core.dtype import FORMATS, accumulation_dtype
from accuracy.core.quantisation import unit_roundoff
from accuracy.kernel.base import Abilities, Kernel
from accuracy.kernel.triton.available import TritonKernel
from tests import sampling
from tests.contract.kernel.problem import NAMES, Problem, errors, relative, results, within

SCALE = 0.3
ON_A_CPU = {"eager", "chunked", "quantised", "torch_flash", "torch_math"}


@dataclass(frozen=True)
class Subject:
    name: str
    module: ModuleType
    kernel: Kernel
    abilities: Abilities
    device: str

    @property
    def low(self) -> float:
        """What its formats of 8 bits may add to a relative error: 4 u, see `accuracy.verdict.evidence`."""
        return 4 * unit_roundoff(self.name, "")

    @property
    def interpreted(self) -> bool:
        """Triton's interpreter runs a program's instructions one by one: small shapes only."""
        return isinstance(self.kernel, TritonKernel) and self.device == "cpu"

    def serves(self, dtype: str, shape: Problem, causal: bool = True, **features: str) -> Problem:
        """The problem, of a sample in Triton's interpreter one item of at most 3 tiles of keys; where the kernel does
        not state to take it, the test skips with its reason."""
        if reason := self.abilities.unsupported(self.name, dtype, shape.dim, {dtype}, features):
            pytest.skip(reason)
        if self.interpreted and not sampling.whole:
            shape = replace(shape, batch=1, queries=min(shape.queries, 70), keys=min(shape.keys, 140))
        return replace(shape, dtype=getattr(torch, dtype), causal=causal)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kernel on every device that is here and that it runs on, with every dtype that it states there."""
    if "subject" not in metafunc.fixturenames:
        return
    found = []
    for name, source in _sources(metafunc.config.getoption("--config-dir")).items():
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            abilities = _abilities(source, device)
            # on a CPU a kernel that quantises is held to its emulation, which is held to the reference
            if abilities.missing or (unit_roundoff(name, "") and device == "cpu"):
                continue
            if name == "triton_carry" and device == "cpu" and not sampling.whole:
                continue  # but for `carry` (test_triton) it is triton_split_backward
            marks = [pytest.mark.gpu] if device == "cuda" else []
            for dtype in abilities.dtypes:
                found.append(pytest.param((name, source, device), dtype, marks=marks, id=f"{name}-{device}-{dtype}"))
    metafunc.parametrize(("subject", "dtype"), found, indirect=["subject"])


def _sources(folder: Path | None) -> dict[str, str]:
    return dict(sorted(find.sources("kernel", [folder] if folder else []).items()))


def _abilities(source: str, device: str) -> Abilities:
    return plugins.load(source).KERNEL().abilities(device)


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Subject:
    name, source, device = request.param
    module = plugins.load(source)
    return Subject(name, module, module.KERNEL().build(device), _abilities(source, device), device)


SQUARE = Problem(queries=64, keys=64, heads=4, heads_kv=2, dim=64, batch=2)
SHAPES = {
    "square": SQUARE,
    "more_keys": replace(SQUARE, queries=48, keys=112),
    "odd_lengths": replace(SQUARE, queries=37, keys=101),
    "one_row": replace(SQUARE, queries=1, keys=33),
    "mqa": replace(SQUARE, heads_kv=1),
    "mha": replace(SQUARE, heads_kv=4, dim=32),
    "wide_heads": replace(SQUARE, dim=128),
    "widest_heads": replace(SQUARE, queries=65, keys=130, dim=256, heads=2, heads_kv=1, batch=1),
    "odd_heads": replace(SQUARE, queries=33, keys=33, dim=40),
    "long": replace(SQUARE, queries=190, keys=1030, heads=2, heads_kv=1, batch=1),
}


@pytest.mark.stress(18, "subject", "dtype", "shape", "causal")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_right_for_every_dtype_it_states(subject: Subject, dtype: str, shape: str, causal: bool) -> None:
    """A lost key or a wrong head costs 10^-2 or more. Where scores are summed in the dtype itself (float32, float64,
    and lse always): D u, 128 u at least. A score is a sum of D products, sqrt(D) roundings of a size of up to sqrt(D),
    and its absolute error is P's relative one. (torch's CPU kernel stays below with 60 u for lse of 16-bit inputs, for
    which its exp has 20 bits.)"""
    problem = subject.serves(dtype, SHAPES[shape], causal)
    tensors, units = problem.draw(subject.device), max(128, problem.dim)
    found = results(subject.kernel, problem, tensors)
    ratios = errors(found, problem.reference(*tensors), problem.dtype, units, units, low=subject.low)
    assert within(ratios), ratios


CAUSAL = (None, 0)
FEATURES = {  # window, softcap, head dims of keys and of values
    "window": ((9, 0), None, ()), "both sides": ((5, 11), None, ()), "ahead": ((None, 7), 0.6, ()),
    "capped": ((20, None), 0.6, ()), "narrow values": (CAUSAL, None, (64, 40)), "wide values": (CAUSAL, None, (40, 64)),
}  # fmt: skip


@pytest.mark.stress(24, "subject", "feature")
@pytest.mark.parametrize("feature", FEATURES)
def test_features_that_it_states_are_right(subject: Subject, feature: str, dtype: str) -> None:
    """A key too many or too few costs 10^-2 or more, a forgotten cap 10^-1. lse of a few keys is smaller than that of
    all, ln 10 for ln 112, and its relative error twice as large."""
    window, softcap, widths = FEATURES[feature]
    asked = {"window": window != CAUSAL, "softcap": softcap, "head_dim_v": widths}
    problem = subject.serves(dtype, SHAPES["more_keys"], **{name: "" for name, given in asked.items() if given})
    tensors = problem.draw(subject.device)
    how: dict[str, Any] = {"causal": True} if window == CAUSAL else {"causal": False, "window": window}
    how |= {"softcap": softcap} if softcap else {}
    if widths:
        of_qk, of_v = widths
        tensors = [x[..., :width].contiguous() for x, width in zip(tensors, (of_qk, of_qk, of_v, of_v), strict=True)]
    ahead = torch.arange(problem.keys) - torch.arange(problem.queries)[:, None] - (problem.keys - problem.queries)
    left, right = (problem.keys if side is None else side for side in window)
    expected = problem.reference(*tensors, seen=(ahead >= -left) & (ahead <= right), softcap=softcap)
    q, k, v, dout = tensors
    out, lse = subject.kernel.forward(q, k, v, scale=SCALE, **how, out_dtype=q.dtype)
    found = subject.kernel.backward(dout, q, k, v, out, lse, scale=SCALE, **how, gradient_dtype=q.dtype)
    ratios = errors([out, lse, *found], expected, problem.dtype, lse=256)
    assert within(ratios), ratios


def test_partials_come_unrounded_where_it_states_so(subject: Subject, dtype: str) -> None:
    """A float32 partial of 16-bit inputs is nearer to the reference than its own 16-bit rounding; at least 8 times
    where a knob of the kernel leaves P unrounded, too."""
    if FORMATS[dtype].bytes > 2 or "float32" not in subject.abilities.partial_dtypes or subject.low:
        pytest.skip("states no float32 partials, or they are no finer")
    knobs = plugins.build_options(subject.module, (("probability_dtype", "float32"),))  # where it has that knob
    problem = subject.serves(dtype, SQUARE)
    tensors = problem.draw(subject.device)
    found = results(knobs.build(subject.device), problem, tensors, torch.float32)[:3]
    assert {x.dtype for x in found} == {torch.float32}
    reference = problem.reference(*tensors)
    rounded = relative([x.to(problem.dtype) for x in found], reference)
    for name, error in relative(found, reference).items():
        assert error < rounded[name], name
        if "probability_dtype" in dict(plugins.default_options(subject.module)):
            assert error < FORMATS[dtype].unit_roundoff * (0.4 / 8 if name != "dq" else 1), name


@pytest.mark.stress(8, "subject")
def test_what_it_calls_deterministic_is_however_out_and_lse_lie_in_memory(subject: Subject, dtype: str) -> None:
    """A second time; heads innermost, as ulysses has them from an exchange; a part of longer ones, as a block has."""
    if not subject.abilities.deterministic:
        pytest.skip(f"states no determinism for {dtype}")
    size = 37 if subject.interpreted else 515
    problem = replace(SQUARE, queries=size, keys=size, heads=2, heads_kv=1, batch=1, dtype=getattr(torch, dtype))
    q, k, v, dout = problem.draw(subject.device)
    how = {"scale": SCALE, "causal": True, "out_dtype": q.dtype}
    (out, lse), again = (subject.kernel.forward(q, k, v, **how) for _ in range(2))
    assert all(map(torch.equal, (out, lse), again))
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (out, lse)]
    stored = [again, (out, lse), turned, (torch.cat([out, out], 1)[:, size:], torch.cat([lse, lse], 2)[:, :, size:])]
    given = {"scale": SCALE, "causal": True, "gradient_dtype": q.dtype}
    first, *others = (subject.kernel.backward(dout, q, k, v, *each, **given) for each in stored)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.stress(12, "subject", "dtype")
def test_the_gradients_of_blocks_are_those_of_the_whole(subject: Subject, dtype: str) -> None:
    """What a ring asks of a backward: out and lse over all keys, keys of one block. The blocks' dq add up to the whole
    one's, dk and dv lie side by side; a backward that used its block's own lse would be off by the other's share.

    Bounds as above, for the same sums: a second block rounds no more than the first.
    """
    problem = subject.serves(dtype, SHAPES["odd_lengths"])
    q, k, v, dout = problem.draw(subject.device)
    out, lse, *expected = problem.reference(q, k, v, dout)
    out, lse = out.to(q.dtype), lse.to(getattr(torch, accumulation_dtype(dtype)))
    how = {"scale": SCALE, "gradient_dtype": q.dtype}
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch then fills fresh memory with NaN
    try:
        written = subject.kernel.forward(q, k, v, scale=SCALE, causal=True, out_dtype=q.dtype)
        near, far = (
            subject.kernel.backward(dout, q, k[:, keys], v[:, keys], out, lse, causal=causal, **how)
            for keys, causal in ((slice(64, 101), True), (slice(0, 64), False))
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(x.isfinite().all() for x in written)
    whole = near[0].double() + far[0].double(), *(torch.cat(pair, 1) for pair in zip(far[1:], near[1:], strict=True))
    units = 16 if FORMATS[dtype].bytes == 2 else 128
    for name, error in zip(NAMES[2:], relative(whole, expected).values(), strict=True):
        assert error < max(subject.low, units * FORMATS[dtype].unit_roundoff), (name, error)


def test_what_cannot_run_says_why_and_what_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, without packages, and where Triton is not interpreted; and a head dim that is too small."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = {name: _abilities(source, "cpu").missing for name, source in _sources(None).items()}
    assert {name for name, missing in said.items() if not missing} == ON_A_CPU
    for name in said.keys() - ON_A_CPU:
        assert re.search("use kernel=|pip install", said[name]), name
    least = Abilities(dtypes=("float16",), head_dim_min=16)
    assert least.unsupported("k", "float16", 8, set()) == "kernel k takes head_dim from 16, not 8"
