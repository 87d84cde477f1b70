"""The adapter of cuDNN's FP8 attention on a library that stands in for it: names, scales and passes; on a GPU, it."""

import math
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from accuracy.core.quantisation import POLICIES
from accuracy.kernel.lowp import cudnn_fp8, quantised
from tests.kernel.problem import Problem, relative, results

PROBLEM = Problem(queries=96, keys=96, dim=128, scale=128**-0.5)


class Place:
    """A tensor of a graph: any setter returns it."""

    def __getattr__(self, name: str) -> Callable[..., "Place"]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given: self


class Graph:
    """What the adapter asks of `cudnn.pygraph`, computed in float64: results are scaled, cast, and their largest value,
    before the scale, is given back."""

    def __init__(self, **how: Any) -> None:
        self.work: Callable[[dict[Any, Tensor]], None] = lambda pack: None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given, **how: None

    def tensor(self, **how: Any) -> Place:
        return Place()

    def get_workspace_size(self) -> int:
        return 0

    def execute(self, pack: dict[Any, Tensor], workspace: Tensor, handle: Any) -> None:
        self.work(pack)

    def sdpa_fp8(self, *, attn_scale: float, generate_stats: bool, **places: Any) -> list[Place]:
        outputs = [Place() for _ in range(4)]

        def work(pack: dict[Any, Tensor]) -> None:
            x = {name: pack[place].double() for name, place in places.items() if isinstance(place, Place)}
            q, k, v = (x[name] * x[f"descale_{name}"] for name in "qkv")
            scores, value = _scores(q, k, attn_scale, places), _heads(v, q)
            lse = scores.logsumexp(-1, keepdim=True)
            out = scores.softmax(-1) @ value
            _store(pack[outputs[0]], out, x["scale_o"])
            pack[outputs[1]].copy_(lse)
            pack[outputs[3]].fill_(float(out.abs().max()))

        self.work = work
        return outputs

    def sdpa_fp8_backward(self, *, attn_scale: float, **places: Any) -> list[Place]:
        outputs = [Place() for _ in range(7)]

        def work(pack: dict[Any, Tensor]) -> None:
            x = {name: pack[place].double() for name, place in places.items() if isinstance(place, Place)}
            q, k, v, o, dout = (x[name] * x[f"descale_{name}"] for name in ("q", "k", "v", "o", "dO"))
            weights = (_scores(q, k, attn_scale, places) - x["stats"]).exp()
            slope = weights * (dout @ _heads(v, q).mT - (dout * o).sum(-1, keepdim=True)) * attn_scale
            codes = (slope * x["scale_dP"]).clamp(-448, 448).float().to(torch.float8_e4m3fn).double()
            cast = codes * x["descale_dP"]
            found = (cast @ _heads(k, q), _shared(cast.mT @ q, k), _shared(weights.mT @ dout, k))
            for place, gradient, name in zip(outputs, found, ("dQ", "dK", "dV"), strict=False):
                _store(pack[place], gradient, x[f"scale_{name}"])
            for place, gradient in zip(outputs[3:], (*found, slope), strict=True):
                pack[place].fill_(float(gradient.abs().max()))

        self.work = work
        return outputs


def _heads(x: Tensor, q: Tensor) -> Tensor:
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _shared(x: Tensor, k: Tensor) -> Tensor:
    return x.unflatten(1, (k.shape[1], -1)).sum(2)


def _scores(q: Tensor, k: Tensor, scale: float, places: dict[str, Any]) -> Tensor:
    scores = scale * q @ _heads(k, q).mT
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1) if "right_bound" in places else None
    return scores if hidden is None else scores.masked_fill(hidden, -math.inf)


def _store(result: Tensor, x: Tensor, scale: Tensor) -> None:
    largest = torch.finfo(result.dtype).max
    result.copy_((x * scale).clamp(-largest, largest).float().to(result.dtype))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = ModuleType("cudnn")
    fake.pygraph, fake.create_handle = Graph, lambda: None
    fake.data_type = SimpleNamespace(FP8_E4M3=0, FP8_E5M2=1, FLOAT=2)
    fake.heur_mode = SimpleNamespace(A=0, FALLBACK=1)
    fake.diagonal_alignment = SimpleNamespace(TOP_LEFT=0)
    monkeypatch.setitem(sys.modules, "cudnn", fake)
    for cached in (cudnn_fp8._handle, cudnn_fp8._forward_graph, cudnn_fp8._backward_graph):
        cached.cache_clear()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("keys", [96, 130])
def test_scales_and_passes_leave_no_more_than_the_formats(keys: int) -> None:
    """4 unit roundoffs, as of any kernel in 8 bits; a scale that is missing or from an earlier pass saturates: more."""
    problem = Problem(queries=96, keys=keys, dim=128, scale=128**-0.5)
    tensors = problem.draw("cpu")
    found = relative(results(cudnn_fp8.KERNEL(), problem, tensors), problem.reference(*tensors))
    assert max(found.values()) < 4 * POLICIES["cudnn_e4m3"].unit_roundoff, found


@pytest.mark.usefixtures("library")
def test_a_scale_of_an_earlier_pass_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_fp8, "_scale", lambda word, largest: 2.0**16)
    tensors = PROBLEM.draw("cpu")
    found = relative(results(cudnn_fp8.KERNEL(), PROBLEM, tensors), PROBLEM.reference(*tensors))
    assert min(found["out"], found["dq"], found["dv"]) > 4 * POLICIES["cudnn_e4m3"].unit_roundoff


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["cudnn_e4m3", "cudnn_e5m2"])
def test_its_emulation_is_as_far_off(policy: str) -> None:
    """Within a tenth; how near it is on other inputs is what experiments/fp8_fit measures."""
    if missing := cudnn_fp8.KERNEL().abilities("cuda").missing:
        pytest.skip(missing)
    problem = Problem(queries=1024, keys=1024, heads=4, heads_kv=4, dim=128, scale=128**-0.5, dtype=torch.bfloat16)
    tensors = problem.draw("cuda")
    reference = problem.reference(*tensors)
    mine, other = (
        relative(results(each(policy=policy), problem, tensors, torch.float32), reference)
        for each in (quantised.KERNEL, cudnn_fp8.KERNEL)
    )
    for name in ("out", "dq", "dk", "dv"):
        assert mine[name] == pytest.approx(other[name], rel=0.1), (mine, other)
