"""What every kernel on disk promises on every device that is here: what it states it can do, it does, and rightly."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from accuracy.core import plugins
from accuracy.core.dtype import FORMATS, accumulation_dtype
from accuracy.core.paths import CONFIGS
from accuracy.kernel.base import Abilities, Kernel
from accuracy.kernel.triton.available import TritonKernel
from accuracy.reference.float64 import Reference, attention

SCALE = 0.3


@dataclass(frozen=True)
class Subject:
    name: str
    module: ModuleType
    kernel: Kernel
    abilities: Abilities
    device: str

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
            dtypes = abilities.dtypes if "dtype" in metafunc.fixturenames else ("",)
            marks = [pytest.mark.gpu] if device == "cuda" else []
            for dtype in () if abilities.missing else dtypes:
                words = [name, device, dtype] if dtype else [name, device]
                found.append(pytest.param((name, source, device), *words[2:], marks=marks, id="-".join(words)))
    metafunc.parametrize(
        ("subject", "dtype") if "dtype" in metafunc.fixturenames else "subject", found, indirect=["subject"]
    )


def _sources(folder: Path | None) -> dict[str, str]:
    ours = {path.stem: f"accuracy.kernel.{path.stem}" for path in (CONFIGS / "kernel").glob("*.yaml")}
    theirs = (
        {path.stem: str(path.with_suffix(".py").resolve()) for path in folder.glob("kernel/*.yaml")} if folder else {}
    )
    return {name: source for name, source in sorted((ours | theirs).items()) if name not in ("auto", "every")}


def _abilities(source: str, device: str) -> Abilities:
    return plugins.load(source).KERNEL().abilities(device)


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Subject:
    name, source, device = request.param
    module = plugins.load(source)
    return Subject(name, module, module.KERNEL().build(device), _abilities(source, device), device)


@dataclass(frozen=True)
class Shape:
    queries: int = 64
    keys: int = 64
    heads: int = 4
    heads_kv: int = 2
    dim: int = 64
    batch: int = 2


SHAPES = {
    "square": Shape(),
    "more_keys": Shape(queries=48, keys=112),
    "odd_lengths": Shape(queries=37, keys=101),
    "one_row": Shape(queries=1, keys=33),
    "mqa": Shape(heads_kv=1),
    "mha": Shape(heads_kv=4, dim=32),
    "wide_heads": Shape(dim=128),
    "widest_heads": Shape(queries=65, keys=130, dim=256),
    "odd_heads": Shape(queries=33, keys=33, dim=40),
    "long": Shape(queries=190, keys=1030, batch=1),
}


def draw(shape: Shape, dtype: str, device: str) -> list[torch.Tensor]:
    """q, k, v, dout."""
    generator = torch.Generator().manual_seed(7)
    sizes = [(shape.queries, shape.heads), (shape.keys, shape.heads_kv), (shape.keys, shape.heads_kv),
             (shape.queries, shape.heads)]  # fmt: skip
    return [
        torch.randn(shape.batch, length, heads, shape.dim, generator=generator).to(getattr(torch, dtype)).to(device)
        for length, heads in sizes
    ]


def reference_of(q, k, v, dout, causal: bool) -> Reference:
    """Bottom-right causal with more keys than rows: the square problem with rows added on top, their dout zero."""
    missing = k.shape[1] - q.shape[1]
    padding = [torch.zeros(q.shape[0], missing, *q.shape[2:], dtype=q.dtype, device=q.device)] if causal else []
    whole = attention(torch.cat([*padding, q], 1), k, v, torch.cat([*padding, dout], 1), scale=SCALE, causal=causal)
    if not causal:
        return whole
    return Reference(
        whole.out[:, missing:], whole.lse[:, :, missing:], whole.dq[:, missing:], whole.dk, whole.dv,
        whole.delta[:, :, missing:],
    )  # fmt: skip


def run(subject: Subject, tensors: list[torch.Tensor], causal: bool, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    q, k, v, dout = tensors
    out, lse = subject.kernel.forward(q, k, v, scale=SCALE, causal=causal, out_dtype=dtype)
    gradients = subject.kernel.backward(
        dout, q, k, v, out.to(q.dtype), lse, scale=SCALE, causal=causal, gradient_dtype=dtype
    )
    return out, lse, *gradients


@pytest.mark.stress(40, "subject", "dtype", "shape", "causal")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_right_for_every_dtype_it_states(subject: Subject, dtype: str, shape: str, causal: bool) -> None:
    """In units of the stored dtype's u, in the Frobenius norm; a lost key or a wrong head costs 10^-2 or more.

    16-bit tensors: 16 u. The floor is 0.4 u, P and out are rounded once each, and scores are summed in float32.
    Where scores are summed in the dtype itself (float32, float64, and lse always): D u, 128 u at least. A score is a
    sum of D products, sqrt(D) roundings of a size of up to sqrt(D), and its absolute error is P's relative one.
    (torch's CPU kernel stays below with 60 u for lse of 16-bit inputs, for which its exp has 20 bits.)
    """
    unsupported = subject.abilities.unsupported(subject.name, dtype, SHAPES[shape].dim, {dtype})
    if unsupported:
        pytest.skip(unsupported)
    tensors = draw(SHAPES[shape], dtype, subject.device)
    reference = reference_of(*tensors, causal)
    results = run(subject, tensors, causal, tensors[0].dtype)
    for name, x in zip(("out", "lse", "dq", "dk", "dv"), results, strict=True):
        expected = getattr(reference, name)
        stored = accumulation_dtype(dtype) if name == "lse" else dtype
        assert x.shape == expected.shape, name
        assert x.dtype == getattr(torch, stored), name
        error = (x.double() - expected).norm() / expected.norm()
        units = 16 if FORMATS[stored].bytes == 2 else max(128, SHAPES[shape].dim)
        assert error < units * FORMATS[stored].unit_roundoff, (name, float(error))


WINDOWS = [(9, 0), (5, 11), (None, 7), (20, None)]


@pytest.mark.stress(24, "subject", "dtype", "window", "softcap")
@pytest.mark.parametrize("softcap", [None, 0.6])
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_and_caps_that_it_states_are_right(subject: Subject, window, softcap, dtype: str) -> None:
    """Held to what its plain masks are; a key too many or too few costs 10^-2 or more, a forgotten cap 10^-1.

    lse of a few keys is smaller than that of all, ln 10 for ln 112, and its relative error so twice as large.
    """
    asked = {"window": "w"} | ({"softcap": "c"} if softcap else {})
    if reason := subject.abilities.unsupported(subject.name, dtype, 64, {dtype}, asked):
        pytest.skip(reason)
    q, k, v, dout = draw(SHAPES["more_keys"], dtype, subject.device)
    how = {"scale": SCALE, "causal": False, "window": window} | ({"softcap": softcap} if softcap else {})
    out, lse = subject.kernel.forward(q, k, v, **how, out_dtype=q.dtype)
    gradients = subject.kernel.backward(dout, q, k, v, out, lse, **how, gradient_dtype=q.dtype)
    reference = by_autograd(q, k, v, dout, window, softcap)
    for name, x, expected in zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *gradients), reference, strict=True):
        stored = accumulation_dtype(dtype) if name == "lse" else dtype
        units = 256 if name == "lse" else 16 if FORMATS[stored].bytes == 2 else 128
        error = (x.double() - expected).norm() / expected.norm()
        assert error < units * FORMATS[stored].unit_roundoff, (name, float(error))


def by_autograd(q, k, v, dout, window, softcap) -> tuple[torch.Tensor, ...]:
    """out, lse, dq, dk, dv in float64 from the definition of a window, gradients by autograd."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    query, key, value = (x.transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    scores = SCALE * query @ key.mT
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    rows, keys = scores.shape[-2:]
    distance = torch.arange(keys)[None] - torch.arange(rows)[:, None] - (keys - rows)
    left, right = (rows + keys if side is None else side for side in window)
    scores = scores.masked_fill(((distance < -left) | (distance > right)).to(q.device), -torch.inf)
    out = (scores.softmax(-1) @ value).transpose(1, 2)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), dout.double())
    return out.detach(), scores.logsumexp(-1).detach(), dq, dk, dv


def test_partials_come_unrounded_where_it_states_so(subject: Subject, dtype: str) -> None:
    """A float32 partial of 16-bit inputs is nearer to the reference than its own 16-bit rounding; at least 8 times
    where a knob of the kernel leaves P unrounded, too."""
    if FORMATS[dtype].bytes > 2 or "float32" not in subject.abilities.partial_dtypes:
        pytest.skip("states no float32 partials, or they are no finer")
    knobs = plugins.build_options(subject.module, (("probability_dtype", "float32"),))  # where it has that knob
    tensors = draw(SHAPES["square"], dtype, subject.device)
    reference = reference_of(*tensors, True)
    finer = replace(subject, kernel=knobs.build(subject.device))
    for name, x in zip(("out", "lse", "dq"), run(finer, tensors, True, torch.float32), strict=False):
        assert x.dtype == torch.float32
        expected = getattr(reference, name)
        error = (x.double() - expected).norm() / expected.norm()
        rounded = (x.to(tensors[0].dtype).double() - expected).norm() / expected.norm()
        assert error < rounded, name
        if "probability_dtype" in dict(plugins.default_options(subject.module)):
            assert error < FORMATS[dtype].unit_roundoff * (0.4 / 8 if name != "dq" else 1), name


@pytest.mark.stress(8, "subject")
def test_what_it_calls_deterministic_is(subject: Subject, dtype: str) -> None:
    if not subject.abilities.deterministic:
        pytest.skip(f"states no determinism for {dtype}")
    length = 64 if subject.interpreted else 512
    tensors = draw(Shape(queries=length, keys=length), dtype, subject.device)
    first, second = (run(subject, tensors, True, tensors[0].dtype) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.stress(8, "subject", "rows")
@pytest.mark.parametrize("rows", [32, 37])
def test_the_backward_takes_out_and_lse_however_they_lie_in_memory(subject: Subject, rows: int) -> None:
    """Heads innermost, as ulysses has them from an exchange; and a part of longer ones, as a block has them."""
    if not subject.abilities.deterministic:
        pytest.skip("states no determinism")
    q, k, v, dout = draw(Shape(queries=rows, keys=rows), subject.abilities.dtypes[-1], subject.device)
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
    """Fresh memory is poisoned with NaN; none of it may come through."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch then fills fresh memory with NaN
    try:
        tensors = draw(SHAPES["odd_lengths"], subject.abilities.dtypes[0], subject.device)
        assert all(x.isfinite().all() for x in run(subject, tensors, True, tensors[0].dtype))
    finally:
        torch.use_deterministic_algorithms(False)


def test_it_unsupporteds_with_a_reason() -> None:
    abilities = Abilities(dtypes=("float16",), head_dim_max=256, head_dim_multiple=8)
    assert abilities.unsupported("k", "float16", 64, {"float16"}) is None
    assert abilities.unsupported("k", "float32", 64, {"float32"}) == "kernel k has no float32 here; it has float16"
    assert abilities.unsupported("k", "float16", 512, set()) == "kernel k takes head_dim up to 256, not 512"
    assert abilities.unsupported("k", "float16", 60, set()) == "kernel k takes head_dim in multiples of 8, not 60"
    assert Abilities(dtypes=("float16",), head_dim_min=16).unsupported("k", "float16", 8, set()) == (
        "kernel k takes head_dim from 16, not 8"
    )
    assert "float32 partials" in str(abilities.unsupported("k", "float16", 64, {"float32"}))


@pytest.mark.stress(12, "subject", "dtype")
def test_the_gradients_of_blocks_are_those_of_the_whole(subject: Subject, dtype: str) -> None:
    """What a ring asks of a backward: out and lse over all keys, keys of one block. The blocks' dq add up to the whole
    one's, dk and dv lie side by side; a backward that used its block's own lse would be off by the other's share.

    Bounds as above, for the same sums: a second block rounds no more than the first.
    """
    q, k, v, dout = draw(Shape(queries=37, keys=101), dtype, subject.device)
    reference = reference_of(q, k, v, dout, causal=True)
    out, lse = reference.out.to(q.dtype), reference.lse.to(getattr(torch, accumulation_dtype(dtype)))
    near, far = (
        [
            x.double()
            for x in subject.kernel.backward(
                dout, q, k[:, keys], v[:, keys], out, lse, scale=SCALE, causal=causal, gradient_dtype=q.dtype
            )
        ]
        for keys, causal in ((slice(64, 101), True), (slice(0, 64), False))
    )
    whole = near[0] + far[0], torch.cat([far[1], near[1]], 1), torch.cat([far[2], near[2]], 1)
    for name, x in zip(("dq", "dk", "dv"), whole, strict=True):
        error = (x - getattr(reference, name)).norm() / getattr(reference, name).norm()
        units = 16 if FORMATS[dtype].bytes == 2 else 128
        assert error < units * FORMATS[dtype].unit_roundoff, (name, float(error))
