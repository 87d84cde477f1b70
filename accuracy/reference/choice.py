"""Which code computes a reference: the fused kernels where they run, else torch's products, row block by row block."""

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from accuracy.core.case import Problem
from accuracy.core.errors import ConfigError
from accuracy.inputs.drawing import Inputs
from accuracy.reference import float64, fused
from accuracy.reference.float64 import Reference
from accuracy.runtime import given_mask
from accuracy.runtime.dropout import Dropout

FUSED_HEAD_DIM = 256


def unsupported(problem: Problem, device: str) -> str | None:
    """Why the fused kernels cannot compute a problem's reference; None: they can."""
    if device != "cuda":
        return "need a CUDA device"
    if importlib.util.find_spec("triton") is None:
        return "need triton"
    for feature in ("softcap", "sinks", "attn_mask", "dropout"):
        if getattr(problem, feature) is not None:
            return f"know no {feature}"
    if problem.head_dim_v is not None:
        return "know values as wide as keys only"
    if problem.head_dim > FUSED_HEAD_DIM:
        return f"know head dims to {FUSED_HEAD_DIM}"
    return None


def choose(problem: Problem, device: str, wanted: str) -> str:
    """fused or torch. Raises ConfigError where fused is asked for and cannot be."""
    reason = unsupported(problem, device)
    if wanted == "fused" and reason:
        raise ConfigError(f"reference.method=fused: its kernels {reason}; use reference.method=auto")
    return "torch" if reason or wanted == "torch" else "fused"


def compute(method: str, problem: Problem, inputs: Inputs, seed: int) -> Reference:
    """The reference of a problem's inputs; seed: of a dropout."""
    if method == "fused":
        return fused.attention(*inputs.tensors, scale=problem.softmax_scale, **problem.seen_by)
    return float64.attention(
        *inputs.tensors, scale=problem.softmax_scale, **problem.seen_by, softcap=problem.softcap,
        sinks=problem.sink_logits, mask=given_mask.in_four(problem, inputs.q.dtype, inputs.q.device),
        dropped=None if problem.dropout is None else _dropped(problem.dropout, seed, inputs.q),
        of_bias=given_mask.of_gradient(problem) or (1, 1, 0, 0),
    )  # fmt: skip


def _dropped(rate: float, seed: int, q: Tensor) -> Callable[[int, int, slice, slice], Tensor]:
    like = q.new_empty(0, dtype=torch.float64)

    def factors(item: int, head: int, queries: slice, keys: slice) -> Tensor:
        places = (torch.arange(each.start, each.stop) for each in (queries, keys))
        mask = Dropout(rate, seed).at(*places).of_heads(head)
        return mask.kept(range(item, item + 1), 1, like)[0, 0] * mask.scale

    return factors
