"""Healthy functions of 16 bits, drawn: is one of them accused? `python -m tests.slow.foreign.drawn COUNT [diagnose]`.

Each is one combination of what kernels do: the whole softmax or an online one over chunks of keys, P, scores and the
scaled q in 16 bits or in float32, exp or exp2, lse or none, causal or full, heads in groups. Sums are float32.
"""

import math
import random
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

import accuracy


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
        k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        q, factor = ((q * softmax_scale).to(dtype), unit) if self.short_query else (q, softmax_scale * unit)
        top = torch.full((*q.shape[:3], 1), -1e30)
        total, out = torch.zeros_like(top), torch.zeros(*q.shape[:3], v.shape[3])
        rows, length = torch.arange(q.shape[2])[:, None], k.shape[2]
        for at in range(0, length, self.chunk or length):
            end = min(length, at + (self.chunk or length))
            scores = q.float() @ k[:, :, at:end].float().mT
            scores = (scores.to(dtype).float() if self.short_scores else scores) * factor
            hidden = (torch.arange(at, end) > rows) & causal
            scores = scores.masked_fill(hidden, -math.inf)
            new = torch.maximum(top, scores.amax(-1, keepdim=True)).detach()
            weights, kept = exp(scores - new), exp(top - new)
            total = total * kept + weights.sum(-1, keepdim=True)
            weights = weights.to(dtype).float() if self.short_weights else weights
            out, top = out * kept + weights @ v[:, :, at:end].float(), new
        out = (out / total).transpose(1, 2).to(dtype)
        return (out, (top / unit + total.log())[..., 0]) if self.with_lse else out


def drawn(seed: int) -> tuple[Drawn, dict[str, Any]]:
    """Return a function, and the shape, mask and size of q and k that it is called with."""
    choose = random.Random(seed)
    bits = [choose.random() < 0.5 for _ in range(5)]
    function = Drawn(choose.choice(["bfloat16", "float16"]), choose.choice([0, 16, 32, 128]), *bits)
    heads, heads_kv = choose.choice([(2, 2), (4, 2), (4, 1), (1, 1)])
    problem = {"batch": choose.choice([1, 2]), "seqlen": choose.choice([1, 16, 43, 64, 100, 160]), "heads": heads,
               "heads_kv": heads_kv, "head_dim": choose.choice([8, 32, 40, 64]),
               "mask": choose.choice(["causal", "full"])}  # fmt: skip
    return function, problem


def tensors(seed: int, dtype: str, problem: dict[str, Any]) -> list[Tensor]:
    """q, k, v and dout, q and k of a drawn size."""
    generator = torch.Generator().manual_seed(seed)
    size = random.Random(~seed).choice([0.3, 1.0, 1.0, 2.0])
    batch, length, dim = (problem[name] for name in ("batch", "seqlen", "head_dim"))
    heads = [problem[name] for name in ("heads", "heads_kv", "heads_kv", "heads")]
    found = [torch.randn(batch, length, each, dim, generator=generator) for each in heads]
    return [(x * size if at < 2 else x).to(getattr(torch, dtype)) for at, x in enumerate(found)]


def refused(seed: int) -> str:
    """What `assert_close` says of a drawn function; empty where it passes."""
    function, problem = drawn(seed)
    q, k, v, dout = tensors(seed, function.dtype, problem)
    causal, scale = problem["mask"] == "causal", random.Random(seed).choice([None, 0.2])
    try:
        accuracy.assert_close(function, q, k, v, dout=dout, causal=causal, softmax_scale=scale or q.shape[-1] ** -0.5)
    except AssertionError as error:
        return f"{seed} {asdict(function)} {problem}: {error}"
    return ""


def accused(seed: int) -> str:
    """What `diagnose` says of the rows of a drawn function, measured in this process; empty where it is healthy."""
    function, problem = drawn(seed)
    main = problem | {"seqlen": max(16, problem["seqlen"]), "softmax_scale": random.Random(seed).choice([None, 0.2])}
    rows = accuracy.measure(
        {f"drawn_{seed}": function}, dtype=["bfloat16", "float16"], seed=[seed, seed + 1], device="cpu",
        inputs=["gaussian", "peaked", "tied", "zero_query", "one_value"], progress=False,
        **{key: value for key, value in main.items() if value is not None},
    )  # fmt: skip
    found = accuracy.diagnose(rows)
    return f"{seed} {asdict(function)} {main}: {found.sentence}" if found.is_bug or found.label != "rounding" else ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    judge = accused if "diagnose" in sys.argv else refused
    told = [line for seed in range(int(sys.argv[1])) if (line := judge(seed))]
    print(*told, f"{len(told)} of {sys.argv[1]} accused", sep="\n")
