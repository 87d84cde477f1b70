"""From a case to its inputs: q, k, v, dout, drawn by name and rounded to the case's dtype."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.case import Part, Problem
from accuracy.runtime import rounding


@dataclass(frozen=True)
class Inputs:
    """q, dout (B, Sq, H, D) and k, v (B, S, Hk, D) in one dtype on one device."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """q, k, v, dout."""
        return self.q, self.k, self.v, self.dout


def draw(part: Part, problem: Problem, seed: int) -> dict[str, Tensor]:
    """The unrounded float64 tensors on the CPU, by name."""
    module = plugins.load(part.source)
    options = plugins.build_options(module, part.options)
    drawn = {}
    for name in ("q", "k", "v", "dout"):
        heads = problem.heads_kv if name in "kv" else problem.heads
        shape = (problem.batch, problem.length(name), heads, problem.head_dim)
        drawn[name] = torch.from_numpy(module.draw(_generator(part, shape, seed, name), shape, name, options))
    return drawn


def round_to(drawn: dict[str, Tensor], dtype: str, device: str) -> Inputs:
    """The inputs of a case: rounded once, then moved."""
    return Inputs(**{name: rounding.round_to(x, getattr(torch, dtype)).to(device) for name, x in drawn.items()})


def _generator(part: Part, shape: tuple[int, ...], seed: int, tensor: str) -> np.random.Generator:
    key = f"{part.name}/{part.options_text}/{shape}/{seed}/{tensor}"
    return np.random.Generator(np.random.Philox(int(hashlib.sha256(key.encode()).hexdigest()[:32], 16)))
