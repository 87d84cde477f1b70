"""No healthy function of 16 bits, drawn, is refused, and one whose earlier chunks are not rescaled is.

Each is one combination of what kernels do: the whole softmax or an online one over chunks of keys, P, scores and the
scaled q in 16 bits or in float32, exp or exp2, lse or none, causal or full, heads in groups. Sums are float32.
"""

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from tests.sampling import seeds
from tests.slow.foreign.functions import heads_first


@dataclass(frozen=True)
class Drawn:
    """One healthy function; chunk: keys at a time, 0: all."""

    dtype: str
    chunk: int
    short_weights: bool
    short_query: bool
    short_scores: bool
    base_2: bool
    with_lse: bool

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Any:
        """Return out, with lse where the function has one."""
        dtype, exp = q.dtype, torch.exp2 if self.base_2 else torch.exp
        unit = math.log2(math.e) if self.base_2 else 1.0
        q, k, v = heads_first(q, k, v)
        q, factor = ((q * softmax_scale).to(dtype).float(), unit) if self.short_query else (q, softmax_scale * unit)
        top = torch.full((*q.shape[:3], 1), -1e30)
        total, out = torch.zeros_like(top), torch.zeros(*q.shape[:3], v.shape[3])
        rows, length = torch.arange(q.shape[2])[:, None], k.shape[2]
        for at in range(0, length, self.chunk or length):
            end = min(length, at + (self.chunk or length))
            scores = q @ k[:, :, at:end].mT
            scores = (scores.to(dtype).float() if self.short_scores else scores) * factor
            scores = scores.masked_fill((torch.arange(at, end) > rows) & causal, -math.inf)
            new = torch.maximum(top, scores.amax(-1, keepdim=True)).detach()
            weights, kept = exp(scores - new), exp(top - new)
            total = total * kept + weights.sum(-1, keepdim=True)
            weights = weights.to(dtype).float() if self.short_weights else weights
            out, top = out * kept + weights @ v[:, :, at:end], new
        out = (out / total).transpose(1, 2).to(dtype)
        return (out, (top / unit + total.log())[..., 0]) if self.with_lse else out


def drawn(seed: int) -> tuple[Drawn, dict[str, Any]]:
    """Return a function, and the shape, mask and scale that it is called with."""
    choose = random.Random(seed)
    bits = [choose.random() < 0.5 for _ in range(5)]
    function = Drawn(choose.choice(["bfloat16", "float16"]), choose.choice([0, 16, 32, 128]), *bits)
    heads, heads_kv = choose.choice([(2, 2), (4, 2), (4, 1), (1, 1)])
    problem = {
        "batch": choose.choice([1, 2]), "seqlen": choose.choice([1, 16, 43, 64, 100, 160]), "heads": heads,
        "heads_kv": heads_kv, "head_dim": choose.choice([8, 32, 40, 64]), "mask": choose.choice(["causal", "full"]),
    }  # fmt: skip
    return function, problem | {"softmax_scale": random.Random(seed).choice([problem["head_dim"] ** -0.5, 0.2])}


def refused(seed: int, function: Drawn, problem: dict[str, Any]) -> str:
    """What `assert_close` says of a function; empty where it passes. q and k are of a drawn size."""
    generator, size = torch.Generator().manual_seed(seed), random.Random(~seed).choice([0.3, 1.0, 1.0, 2.0])
    how = {"causal": problem["mask"] == "causal", "softmax_scale": problem["softmax_scale"]}
    shapes = [(problem["batch"], problem["seqlen"], problem[name], problem["head_dim"])
              for name in ("heads", "heads_kv", "heads_kv", "heads")]  # fmt: skip
    q, k, v, dout = (torch.randn(shape, generator=generator) for shape in shapes)
    q, k, v, dout = (x.to(getattr(torch, function.dtype)) for x in (q * size, k * size, v, dout))
    try:
        accuracy.assert_close(function, q, k, v, dout=dout, **how)
    except AssertionError as error:
        return f"{function} {problem}: {error}"
    return ""


@pytest.mark.parametrize("seed", seeds(40))
def test_a_drawn_healthy_function_passes(seed: int) -> None:
    assert refused(seed, *drawn(seed)) == ""


def test_a_drawn_function_with_a_fault_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    function, problem = next(each for each in map(drawn, range(99)) if 0 < 4 * each[0].chunk <= each[1]["seqlen"])
    monkeypatch.setattr(torch, "exp2", lambda x: torch.exp(x * math.log(2.5)))
    assert refused(0, replace(function, base_2=True), problem)
