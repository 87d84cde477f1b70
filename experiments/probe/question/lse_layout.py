"""In which order do lse's values lie, in what shape and dtype? Sizes B = 2, H = 3, Sq = 5 tell the dimensions apart."""

from itertools import permutations

import torch
from torch import Tensor

from experiments.probe.base import DIM, SCALE, Answer, Subject
from experiments.probe.question.lse_base import BASES

BATCH, HEADS, QUERIES, KEYS = 2, 3, 5, 7
AXES = ("B", "H", "S")


def ask(subject: Subject) -> Answer:
    """The order of the axes and the dtype; the shape where it is another one than the order says."""
    q = subject.random(BATCH, QUERIES, HEADS, DIM)
    k, v = (subject.random(BATCH, KEYS, HEADS, DIM, seed=seed) for seed in (1, 2))
    _, lse = subject.forward(q, k, v)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) * SCALE
    expected = scores.logsumexp(-1)
    dtype = str(lse.dtype).removeprefix("torch.")
    details = {"shape": list(lse.shape), "dtype": dtype}
    for order in permutations(range(3)):
        axes = "(" + ", ".join(AXES[axis] for axis in order) + ")"
        reference = expected.permute(order)
        for length in {reference.shape[-1], lse.shape[-1]}:  # some kernels pad the last dimension
            values = lse[..., : reference.shape[-1]] if length > reference.shape[-1] else lse
            if _agree(values, reference):
                shape = "" if tuple(lse.shape) == tuple(reference.shape) else f", shape {tuple(lse.shape)}"
                return Answer(f"{axes}{shape}, {dtype}", details)
    return Answer(f"values in no order known, shape {tuple(lse.shape)}, {dtype}", details)


def _agree(lse: Tensor, reference: Tensor) -> bool:
    """In any base; 1e-3 is far above rounding and far below what tells rows apart (0.1)."""
    if lse.numel() != reference.numel():
        return False
    flat, expected = lse.double().flatten(), reference.flatten()
    return any(torch.allclose(flat, expected * factor, rtol=0, atol=1e-3) for factor in BASES.values())
