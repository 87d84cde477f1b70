"""From a case to its inputs: q, k, v, dout, rounded to the case's dtype, or to 8 bits that it holds.

Drawn by numpy from a key made of names: a case has the same inputs on every device, and a new case shifts no other's.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.case import Case, Part, Problem
from accuracy.core.dtype import INPUT_FORMATS, held
from accuracy.core.quantisation import FORMATS
from accuracy.runtime import rounding
from accuracy.runtime.rounding import power_of_two_scaled
from accuracy.runtime.sharding import cut, sharding_of


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

    def on(self, device: str) -> "Inputs":
        """Return the inputs on a device."""
        return Inputs(*(x.to(device) for x in self.tensors))


NAMES = ("q", "k", "v", "dout")


def draw(part: Part, problem: Problem, seed: int) -> dict[str, Tensor]:
    """The unrounded float64 tensors on the CPU, by name."""
    return {name: _draw_tensor(part, problem, seed, name) for name in NAMES}


def draw_shard(case: Case, rank: int) -> tuple[Tensor, ...]:
    """One rank's shards of q, k, v, dout (B, S/W, heads, D), rounded, on the case's device; one whole tensor at a time
    is in memory."""
    drawn = (_draw_tensor(case.inputs, case.problem, case.seed, name) for name in NAMES)
    wholes = (_rounded(x, case.said_dtype) for x in drawn)
    return tuple(cut(x, sharding_of(case), case.world_size)[rank].clone().to(case.device) for x in wholes)


def _draw_tensor(part: Part, problem: Problem, seed: int, name: str) -> Tensor:
    module = plugins.load(part.source)
    options = plugins.build_options(module, part.options)
    heads = problem.heads_kv if name in "kv" else problem.heads
    width = problem.value_dim if name in ("v", "dout") else problem.head_dim
    shape = (problem.batch, problem.length(name), heads, width)
    return torch.from_numpy(module.draw(_generator(part, shape, seed, name), shape, name, options))


def round_to(drawn: dict[str, Tensor], dtype: str, device: str) -> Inputs:
    """The inputs of a case: moved, then rounded there, with the same bits. dtype: as the case is said to have it."""
    return Inputs(**{name: _rounded(x.to(device), dtype) for name, x in drawn.items()})


def _rounded(x: Tensor, dtype: str) -> Tensor:
    """x (float64) rounded once; to 8 bits from what it is in the dtype that holds it, by one power of two a tensor."""
    rounded = rounding.round_to(x, getattr(torch, held(dtype)))
    if dtype not in INPUT_FORMATS:
        return rounded
    return power_of_two_scaled(rounded.float(), FORMATS[INPUT_FORMATS[dtype]]).to(rounded.dtype)


def _generator(part: Part, shape: tuple[int, ...], seed: int, tensor: str) -> np.random.Generator:
    key = f"{part.name}/{part.options_text}/{shape}/{seed}/{tensor}"
    return np.random.Generator(np.random.Philox(int(hashlib.sha256(key.encode()).hexdigest()[:32], 16)))
