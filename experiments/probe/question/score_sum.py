"""In how many bits are scores summed over the head_dim? One key of ones: lse is the score. See `cancellation`."""

import torch
from torch import Tensor

from experiments.probe.base import DIM, Answer, Subject
from experiments.probe.cancellation import ORDERS, STEPS, bits, named, terms

PLACES = {"near": (0, 1, 2, 3), "far": (0, 16, 32, 48)}


def ask(subject: Subject) -> Answer:
    """The fewest bits over both distances of the terms."""
    kept = {name: bits(_scores(subject, at, True), _scores(subject, at, False)) for name, at in PLACES.items()}
    return Answer(named(min(kept.values())), kept)


def _scores(subject: Subject, at: tuple[int, ...], large: bool) -> Tensor:
    """lse (12 orders, 64 values of t): here t runs along the queries, the terms along the head_dim."""
    q = subject.zeros(STEPS, batch=len(ORDERS))
    q[:, :, 0, at] = terms(large).movedim(1, 2)
    k = torch.ones(len(ORDERS), 1, 1, DIM, dtype=torch.float64)
    _, lse = subject.forward(subject.given(q), subject.given(k), subject.given(k))
    return lse.flatten(1)
