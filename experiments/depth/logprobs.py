"""What does a difference of two paths do to a language model's log-probabilities, layer by layer?

In: a stack with an embedding and a head, and two paths for its attention, all else the same. After each layer the head
is applied, which is what a stack of so many layers gives. Out: how far the paths' log-probabilities of the same next
words are apart, as reinforcement learning meets it: rollouts come from path b (inference), the ratio r = p_a / p_b has
path a (training). Words are drawn from b's distribution at every position, so that the means of k1 and k3 estimate
KL(b || a): k1 = -ln r, k3 = r - 1 - ln r (Schulman 2020, Approximating KL Divergence); the distributions themselves
give it exactly. Logits are in the case's dtype, as the head gives them; their softmax is in float64.
"""

from collections.abc import Iterator
from dataclasses import fields

import torch
from torch import Tensor

from accuracy.core.case import Case, Other
from accuracy.results.table import Row
from accuracy.simulate.program import build_kernel
from experiments.depth.attention import Exact, Halves, Ranks, known_to_autograd
from experiments.depth.layers import block, formats, normalised, rounding
from experiments.depth.plan import Stack
from experiments.depth.weights import Model

CLIP = 0.2
"""Ratios outside [1 - CLIP, 1 + CLIP] are clipped by PPO (Schulman et al. 2017, section 3)."""


def rows(case: Case, stack: Stack, model: Model, method: str) -> list[Row]:
    """Return a row for each depth. method: of the reference."""
    if case.against is None:
        return []
    other, exact = case.other, Exact(case, method)
    own = Other(**{each.name: getattr(case, each.name) for each in fields(Other)})
    about = {"path_a": own.text, "path_b": case.against.text, "dtype": case.dtype, "seed": case.seed,
             "weights": stack.weights}  # fmt: skip
    halves: list[Halves] = [*(Ranks(each, build_kernel(each)) for each in (case, other)), exact]
    with torch.no_grad():
        same = [_depths(model, stack, each, case, case.dtype) for each in halves]
        truth = _depths(model, stack, exact, case, "float64")
        generator = torch.Generator(device=case.device).manual_seed(case.seed)
        found: list[Row] = []
        for depth, (a, b, rest, reference) in enumerate(zip(*same, truth, strict=True), 1):
            found.append({**about, "depth": depth, **_numbers(a, b, rest, reference, generator)})
    return found


def _numbers(a: Tensor, b: Tensor, rest: Tensor, reference: Tensor, generator: torch.Generator) -> Row:
    """Of log-probabilities (N, V) of both paths, of exact attention in the case's dtype, and of the float64 stack."""
    words = torch.multinomial(b.exp(), 1, generator=generator)
    of_a, of_b, of_rest, true = (x.gather(1, words).squeeze(1) for x in (a, b, rest, reference))
    log_ratio = of_a - of_b
    ratio = log_ratio.exp()
    return {
        "tokens": len(words),
        "mean": float(log_ratio.abs().mean()),
        "max": float(log_ratio.abs().max()),
        "rms": _rms(log_ratio),
        "k1": float(-log_ratio.mean()),
        "k1_se": float(log_ratio.std() / len(words) ** 0.5),
        "k3": float((ratio - 1 - log_ratio).mean()),
        "k3_se": float((ratio - 1 - log_ratio).std() / len(words) ** 0.5),
        "kl": float((b.exp() * (b - a)).sum(1).mean()),
        "outside": float(((ratio < 1 - CLIP) | (ratio > 1 + CLIP)).double().mean()),
        "error_a": _rms(of_a - true),
        "error_b": _rms(of_b - true),
        "attention_a": _rms(of_a - of_rest),
        "attention_b": _rms(of_b - of_rest),
        "rest": _rms(of_rest - true),
    }


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def _depths(model: Model, stack: Stack, halves: Halves, case: Case, dtype_name: str) -> Iterator[Tensor]:
    """Log-probabilities (B S, V) of the next words after each layer, float64."""
    dtype = getattr(torch, dtype_name)
    stream, working = formats(stack, dtype)
    x = model.embedding[model.words[:, :-1]].to(stream)
    norm = None if model.norm is None else model.norm.to(working)
    for layer, weights in enumerate(model.layers, 1):
        attention = rounding(known_to_autograd(halves.at(layer)), dtype, working)
        inner = {name: each.to(working) for name, each in weights.items()}
        x = block(x, inner, attention, case.problem.head_dim, stack.residual != "none")
        logits = normalised(x, norm, working) @ model.head.to(working)
        yield logits.double().log_softmax(-1).flatten(0, 1)
