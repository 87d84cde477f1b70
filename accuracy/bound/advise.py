"""Which tolerance should a test of attention use? Measured on healthy kernels, checked on other seeds and on faults.

In: a problem, a distribution, a dtype, kernels. Out: a tensor's `Advice`. Bounds come from half of the seeds; false
alarms are counted in the other half, and the faults are planted there.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from accuracy.core.case import Part, Problem
from accuracy.core.dtype import FORMATS, tensor_dtype
from accuracy.inputs import drawing
from accuracy.inputs.drawing import Inputs
from accuracy.kernel.base import Kernel, kernel_of
from accuracy.kernel.eager import Eager
from accuracy.reference import float64

TENSORS = ("out", "lse", "dq", "dk", "dv")
REFERENCES = ("float64", "float32")
ANY = ("eager", "chunked", "torch_math", "torch_flash", "torch_efficient", "torch_cudnn", "flash_attn")
"""Kernels of which each that runs here counts as healthy, beside attention that keeps all it has in its dtype."""
ALARM = 1e-3
"""Chance of a false alarm by one of a tensor's bounds that the bounds are made for."""
SPREAD = (0.16, 0.04, 0.16)
"""Of the logarithms, from seed to seed, at least: few seeds may look more alike than seeds are. Largest errors have
11% (small problems 16%), norms 1%, and 4% where few rows hold most of them, as under a causal mask."""
ROUNDINGS = 4
"""rtol in unit roundoffs: a result rounded once errs by one at most, a sum of partials rounded as well by a few."""
LEAST = 24
IN_ITS_DTYPE = Eager(compute_dtype="input")
"""Attention as it is written down, everything in the inputs' dtype; such code returns no lse."""


@dataclass(frozen=True)
class Setting:
    """against: with what a test compares, float64 or float32 attention on the same rounded inputs."""

    problem: Problem
    dtype: str
    inputs: Part
    kernels: tuple[Kernel, ...]
    against: str
    device: str


@dataclass(frozen=True)
class Advice:
    """For one tensor. atol, rtol: |x - reference| <= atol + rtol |reference| of every element; relative: of the norm of
    the error over the reference's; row_rms: root mean square error of a row (a head of a token), of lse an element.

    runs: healthy results that were checked; false_alarms: of these, beyond any bound; at_most: what their rate is with
    95%; least_factor: the smallest of 2^-1 to 2^-24 by which a tensor can be scaled so that a bound notices in every
    run, least_factor_elements: so that atol and rtol do; zeros, shifted (by one token): whether the planted
    fault is noticed in every run.
    """

    tensor: str
    atol: float
    rtol: float
    relative: float
    row_rms: float
    runs: int
    false_alarms: int
    at_most: float
    least_factor: float | None
    least_factor_elements: float | None
    zeros: bool
    shifted: bool


def healthy(
    names: Sequence[str] | None, parts: Callable[[str], Part], problem: Problem, dtype: str, device: str
) -> tuple[Kernel, ...]:
    """The kernels of these names, or, None, all of `ANY` that this problem can be given here."""
    if names is not None:
        return tuple(kernel_of(parts(name)) for name in names)
    found = [kernel_of(parts(name)) for name in ANY]
    pairs = zip(ANY, found, strict=True)
    able = [kernel for name, kernel in pairs if unable(name, kernel, problem, dtype, device) is None]
    return (*able, *([] if dtype == "float64" else [IN_ITS_DTYPE]))


def unable(name: str, kernel: Kernel, problem: Problem, dtype: str, device: str) -> str | None:
    """Why a kernel cannot serve."""
    return kernel.abilities(device).unsupported(name, dtype, problem.head_dim, set(), problem.features)


def advise(setting: Setting, seeds: int) -> list[Advice]:
    """One for each tensor. seeds: to measure; as many more are checked. Raises ConfigError for no seeds."""
    most = {name: np.zeros((seeds, 3)) for name in TENSORS}  # over the kernels
    for seed in range(seeds):
        for found, reference in _runs(setting, [seed]):
            for name in found:
                seen = _measured(found[name], reference[name], rtol(name, setting.dtype))
                most[name][seed] = np.maximum(most[name][seed], seen)
    bounds = {name: tuple(map(_bound, seen.T, SPREAD)) for name, seen in most.items()}
    checked = [*_runs(setting, range(seeds, 2 * seeds))]
    return [_advice(name, bounds[name], checked, setting.dtype) for name in TENSORS]


def _bound(seen: np.ndarray, spread: float) -> float:
    """What another seed exceeds with a chance of `ALARM`, if logarithms are normal (Student's t). Fewer than 7 seeds
    promise less: 6 standard deviations are added at most, and a single seed's value is doubled."""
    count, top = len(seen), seen.max()
    if count == 1 or not top:
        return float(2 * top)
    logs = np.log(np.maximum(seen, top / 4))  # a largest excess may be 0
    reach = min(6.0, stats.t.ppf(1 - ALARM, count - 1) * math.sqrt(1 + 1 / count))
    return float(max(top, math.exp(logs.mean() + reach * max(spread, logs.std(ddof=1)))))


def rtol(tensor: str, dtype: str) -> float:
    """The relative tolerance of a tensor's elements."""
    return ROUNDINGS * FORMATS[tensor_dtype(tensor, dtype)].unit_roundoff


Named = dict[str, Tensor]


def _advice(name: str, bounds: tuple[float, ...], checked: list[tuple[Named, Named]], dtype: str) -> Advice:
    relative = rtol(name, dtype)
    checked = [each for each in checked if name in each[0]]

    def beyond(x: Tensor, reference: Tensor, ways: int = 3) -> bool:
        seen = _measured(x, reference, relative)
        return any(not value <= bound for value, bound in list(zip(seen, bounds, strict=True))[:ways])

    def always(change: Callable[[Tensor], Tensor], ways: int = 3) -> bool:
        return all(beyond(change(found[name]), reference[name], ways) for found, reference in checked)

    def least(ways: int) -> float | None:
        noticed = [power for power in range(1, LEAST + 1) if always(partial(torch.mul, other=1 + 2.0**-power), ways)]
        return 2.0 ** -max(noticed) if noticed else None

    alarms, runs = sum(beyond(found[name], reference[name]) for found, reference in checked), len(checked)
    at_most = 3 / runs if not alarms else 1.0  # of their rate, with 95% (Clopper and Pearson; 3 / n for none)
    if 0 < alarms < runs:
        at_most = float(stats.beta.ppf(0.95, alarms + 1, runs - alarms))
    return Advice(
        name, bounds[0], relative, bounds[1], bounds[2], runs, alarms, at_most, least(3), least(1),
        always(torch.zeros_like), always(lambda x: x.roll(1, -1 if name == "lse" else 1)),
    )  # fmt: skip


def _measured(x: Tensor, reference: Tensor, rtol: float) -> tuple[float, float, float]:
    """By how much an element's error exceeds rtol at most, the error's relative norm, and its largest row."""
    error = (x - reference).abs()
    norm = float(reference.norm())
    rows = error.square().mean(-1).sqrt() if error.dim() == 4 else error
    excess = float((error - rtol * reference.abs()).max().clamp(min=0))
    return excess, float(error.norm()) / (norm or 1.0), float(rows.max())


def _runs(setting: Setting, seeds: Sequence[int]) -> Iterator[tuple[Named, Named]]:
    """For every seed and kernel: its results and the reference."""
    for seed in seeds:
        drawn = drawing.draw(setting.inputs, setting.problem, seed)
        inputs = drawing.round_to(drawn, setting.dtype, setting.device)
        reference = _reference(setting, inputs)
        for kernel in setting.kernels:
            yield _results(kernel, setting.problem, inputs), reference


def _reference(setting: Setting, inputs: Inputs) -> Named:
    problem = setting.problem
    if setting.against == "float32":
        wide = Inputs(*(x.float() for x in inputs.tensors))
        return _results(Eager(), problem, wide)
    found = float64.attention(*inputs.tensors, scale=problem.softmax_scale, **problem.seen_by)
    return {name: getattr(found, name) for name in TENSORS}


def _results(kernel: Kernel, problem: Problem, inputs: Inputs) -> Named:
    built, (q, k, v, dout) = kernel.build(inputs.q.device.type), inputs.tensors
    how = {"scale": problem.softmax_scale, "causal": problem.causal}
    out, lse = built.forward(q, k, v, out_dtype=q.dtype, **how)  # type: ignore[arg-type]
    gradients = built.backward(dout, q, k, v, out, lse, gradient_dtype=q.dtype, **how)  # type: ignore[arg-type]
    named = {name: x.double() for name, x in zip(TENSORS, (out, lse, *gradients), strict=True)}
    return {name: x for name, x in named.items() if name != "lse" or kernel is not IN_ITS_DTYPE}
