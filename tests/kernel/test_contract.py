"""What every kernel on disk promises on every device that is here: what it states it can do, it does, and rightly."""

import importlib.util
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from accuracy.config import find
from accuracy.core import plugins
from accuracy.core.dtype import FORMATS, accumulation_dtype
from accuracy.core.quantisation import unit_roundoff
from accuracy.kernel.base import Abilities, Kernel
from accuracy.kernel.triton.available import TritonKernel
from accuracy.runtime.dropout import Dropout
from tests import sampling
from tests.kernel.problem import NAMES, Problem, relative, results

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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kernel on every device that is here and that it runs on, with every dtype that it states there."""
    if "subject" not in metafunc.fixturenames:
        return
    folder: Path | None = metafunc.config.getoption("--config-dir")
    found = []
    for name, source in _sources(folder).items():
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            abilities = _abilities(source, device)
            # on a CPU a kernel that quantises is held to its emulation, which is held to the reference
            if abilities.out_only or (unit_roundoff(name, "") and device == "cpu"):
                continue
            if name == "triton_carry" and device == "cpu" and not sampling.whole:
                continue  # but for `carry` (test_triton_carry) it is triton_split_backward
            dtypes = abilities.dtypes if "dtype" in metafunc.fixturenames else ("",)
            marks = [pytest.mark.gpu] if device == "cuda" else []
            for dtype in () if abilities.missing else dtypes:
                words = [name, device, dtype] if dtype else [name, device]
                found.append(pytest.param((name, source, device), *words[2:], marks=marks, id="-".join(words)))
    metafunc.parametrize(
        ("subject", "dtype") if "dtype" in metafunc.fixturenames else "subject", found, indirect=["subject"]
    )


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


def problem_of(shape: Problem, dtype: str, causal: bool = True) -> Problem:
    return replace(shape, dtype=getattr(torch, dtype), causal=causal)


def fit(subject: Subject, shape: Problem) -> Problem:
    """The shape; a sample's in Triton's interpreter is one item of at most 6 tiles of keys."""
    if not subject.interpreted or sampling.whole:
        return shape
    return replace(shape, batch=1, queries=min(shape.queries, 140), keys=min(shape.keys, 330))


def served(subject: Subject, shape: Problem, dtype: str, causal: bool = True) -> Problem:
    """A problem that the kernel states to take; otherwise the test skips with its reason."""
    if reason := subject.abilities.unsupported(subject.name, dtype, shape.dim, {dtype}):
        pytest.skip(reason)
    return problem_of(fit(subject, shape), dtype, causal)


def asked(subject: Subject, dtype: str, **features: str) -> list[torch.Tensor]:
    """q, k, v, dout of more keys than queries, for a kernel that has the features; otherwise the test skips."""
    if reason := subject.abilities.unsupported(subject.name, dtype, 64, {dtype}, features):
        pytest.skip(reason)
    return problem_of(SHAPES["more_keys"], dtype).draw(subject.device)


def computed(subject: Subject, q, k, v, dout, **how) -> list[torch.Tensor]:
    out, lse = subject.kernel.forward(q, k, v, scale=SCALE, **how, out_dtype=q.dtype)
    return [out, lse, *subject.kernel.backward(dout, q, k, v, out, lse, scale=SCALE, **how, gradient_dtype=q.dtype)]


def assert_near(found, expected, dtype: str, units: int = 128, lse: int = 256, times: float = 1.0, low: float = 0.0):
    """Relative Frobenius errors, in units of the stored dtype's u. 16-bit tensors: 16 u. The floor is 0.4 u, P and out
    are rounded once each, and scores are summed in float32. Of sums in the dtype itself: `units`. lse of a few keys is
    smaller than that of all, ln 10 for ln 112, and its relative error so twice as large."""
    for name, x, exact in zip(NAMES[-len(found) :], found, expected, strict=True):
        stored = accumulation_dtype(dtype) if name == "lse" else dtype
        allowed = lse if name == "lse" else 16 if FORMATS[stored].bytes == 2 else units
        assert (x.shape, x.dtype) == (exact.shape, getattr(torch, stored)), name
        error = float((x.double() - exact).norm() / exact.norm())
        assert error < max(low, allowed * times * FORMATS[stored].unit_roundoff), (name, error)


@pytest.mark.stress(18, "subject", "dtype", "shape", "causal")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_right_for_every_dtype_it_states(subject: Subject, dtype: str, shape: str, causal: bool) -> None:
    """A lost key or a wrong head costs 10^-2 or more. Where scores are summed in the dtype itself (float32, float64,
    and lse always): D u, 128 u at least. A score is a sum of D products, sqrt(D) roundings of a size of up to sqrt(D),
    and its absolute error is P's relative one. (torch's CPU kernel stays below with 60 u for lse of 16-bit inputs, for
    which its exp has 20 bits.)"""
    problem = served(subject, SHAPES[shape], dtype, causal)
    tensors = problem.draw(subject.device)
    units = max(128, problem.dim)
    found = results(subject.kernel, problem, tensors)
    assert_near(found, problem.reference(*tensors), dtype, units, units, low=subject.low)


@pytest.mark.stress(16, "subject", "dtype", "window", "softcap")
@pytest.mark.parametrize("softcap", [None, 0.6])
@pytest.mark.parametrize("window", [(9, 0), (5, 11), (None, 7), (20, None)])
def test_windows_and_caps_that_it_states_are_right(subject: Subject, window, softcap, dtype: str) -> None:
    """A key too many or too few costs 10^-2 or more, a forgotten cap 10^-1."""
    cap = {"softcap": softcap} if softcap else {}
    tensors = asked(subject, dtype, window="w", **dict.fromkeys(cap, "c"))
    found = computed(subject, *tensors, causal=False, window=window, **cap)
    assert_near(found, by_autograd(*tensors, window, softcap), dtype)


@pytest.mark.stress(12, "subject", "dtype")
@pytest.mark.parametrize("widths", [(64, 40), (40, 64)])
def test_values_of_another_width_than_keys_are_right_where_it_states_so(subject: Subject, dtype: str, widths) -> None:
    tensors = asked(subject, dtype, head_dim_v="w")
    tensors = [
        x[..., :width].contiguous() for x, width in zip(tensors, (*2 * widths[:1], *2 * widths[1:]), strict=True)
    ]
    assert_near(computed(subject, *tensors, causal=True), by_autograd(*tensors, (None, 0), None), dtype)


@pytest.mark.stress(12, "subject", "dtype")
def test_dropout_is_right_where_it_states_so(subject: Subject, dtype: str) -> None:
    """Times 1 / (1 - rate): by so much the weights that are left, and their roundings, grow beside a sum of as many
    signs. A dropped weight that is kept costs 10^-2."""
    tensors = asked(subject, dtype, dropout="d")
    dropout = Dropout(0.3, 5).at(torch.arange(100, 148), torch.arange(112))
    factors = dropout.kept(range(len(tensors[0])), tensors[0].shape[2], tensors[0].double()) * dropout.scale
    found = computed(subject, *tensors, causal=True, dropout=dropout)
    assert_near(found, by_autograd(*tensors, (None, 0), None, factors), dtype, times=dropout.scale)


def by_autograd(q, k, v, dout, window, softcap, factors=None) -> tuple[torch.Tensor, ...]:
    """out, lse, dq, dk, dv in float64 from the definition of a window, gradients by autograd; factors: of weights."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    query, key, value = (x.transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    scores = SCALE * query @ key.mT
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    rows, keys = scores.shape[-2:]
    distance = torch.arange(keys)[None] - torch.arange(rows)[:, None] - (keys - rows)
    left, right = (rows + keys if side is None else side for side in window)
    scores = scores.masked_fill(((distance < -left) | (distance > right)).to(q.device), -torch.inf)
    weights = scores.softmax(-1) if factors is None else scores.softmax(-1) * factors
    out = (weights @ value).transpose(1, 2)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), dout.double())
    return out.detach(), scores.logsumexp(-1).detach(), dq, dk, dv


def test_partials_come_unrounded_where_it_states_so(subject: Subject, dtype: str) -> None:
    """A float32 partial of 16-bit inputs is nearer to the reference than its own 16-bit rounding; at least 8 times
    where a knob of the kernel leaves P unrounded, too."""
    if FORMATS[dtype].bytes > 2 or "float32" not in subject.abilities.partial_dtypes or subject.low:
        pytest.skip("states no float32 partials, or they are no finer")
    knobs = plugins.build_options(subject.module, (("probability_dtype", "float32"),))  # where it has that knob
    problem = problem_of(fit(subject, SQUARE), dtype)
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
def test_what_it_calls_deterministic_is(subject: Subject, dtype: str) -> None:
    if not subject.abilities.deterministic:
        pytest.skip(f"states no determinism for {dtype}")
    small, large = replace(SQUARE, heads=2, heads_kv=1, batch=1), replace(SQUARE, queries=512, keys=512)
    problem = problem_of(small if subject.interpreted else large, dtype)
    tensors = problem.draw(subject.device)
    first, second = (results(subject.kernel, problem, tensors) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.stress(8, "subject", "rows")
@pytest.mark.parametrize("rows", [32, 37])
def test_the_backward_takes_out_and_lse_however_they_lie_in_memory(subject: Subject, rows: int) -> None:
    """Heads innermost, as ulysses has them from an exchange; and a part of longer ones, as a block has them."""
    if not subject.abilities.deterministic:
        pytest.skip("states no determinism")
    problem = problem_of(replace(fit(subject, SQUARE), queries=rows, keys=rows), subject.abilities.dtypes[-1])
    q, k, v, dout = problem.draw(subject.device)
    out, lse = subject.kernel.forward(q, k, v, scale=SCALE, causal=True, out_dtype=q.dtype)
    stored = [
        (out, lse),
        (out.transpose(1, 2).contiguous().transpose(1, 2), lse.transpose(1, 2).contiguous().transpose(1, 2)),
        (torch.cat([out, out], 1)[:, rows:], torch.cat([lse, lse], 2)[:, :, rows:]),
    ]
    given = {"scale": SCALE, "causal": True, "gradient_dtype": q.dtype}
    first, *others = (subject.kernel.backward(dout, q, k, v, *each, **given) for each in stored)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_every_element_is_written(subject: Subject) -> None:
    problem = served(subject, SHAPES["odd_lengths"], subject.abilities.dtypes[0])
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch then fills fresh memory with NaN
    try:
        assert all(x.isfinite().all() for x in results(subject.kernel, problem, problem.draw(subject.device)))
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_cannot_run_on_a_cpu_says_why_and_what_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without packages, and where Triton is not interpreted."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = {name: _abilities(source, "cpu").missing for name, source in _sources(None).items()}
    assert {name for name, missing in said.items() if not missing} == ON_A_CPU
    for name in said.keys() - ON_A_CPU:
        assert re.search("use kernel=|pip install", said[name]), name


def test_a_head_dim_below_the_least_is_unsupported_with_a_reason() -> None:
    least = Abilities(dtypes=("float16",), head_dim_min=16)
    assert least.unsupported("k", "float16", 8, set()) == "kernel k takes head_dim from 16, not 8"


@pytest.mark.stress(12, "subject", "dtype")
def test_the_gradients_of_blocks_are_those_of_the_whole(subject: Subject, dtype: str) -> None:
    """What a ring asks of a backward: out and lse over all keys, keys of one block. The blocks' dq add up to the whole
    one's, dk and dv lie side by side; a backward that used its block's own lse would be off by the other's share.

    Bounds as above, for the same sums: a second block rounds no more than the first.
    """
    problem = served(subject, SHAPES["odd_lengths"], dtype)
    q, k, v, dout = problem.draw(subject.device)
    out, lse, *expected = problem.reference(q, k, v, dout)
    out, lse = out.to(q.dtype), lse.to(getattr(torch, accumulation_dtype(dtype)))
    near, far = (
        subject.kernel.backward(
            dout, q, k[:, keys], v[:, keys], out, lse, scale=SCALE, causal=causal, gradient_dtype=q.dtype
        )
        for keys, causal in ((slice(64, 101), True), (slice(0, 64), False))
    )
    whole = near[0].double() + far[0].double(), *(torch.cat(pair, 1) for pair in zip(far[1:], near[1:], strict=True))
    for name, x, gradient in zip(NAMES[2:], whole, expected, strict=True):
        error = float((x.double() - gradient).norm() / gradient.norm())
        units = 16 if FORMATS[dtype].bytes == 2 else 128
        assert error < max(subject.low, units * FORMATS[dtype].unit_roundoff), (name, error)
