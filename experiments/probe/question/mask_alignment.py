"""Who sees whom under a causal mask with fewer queries than keys? V is the identity, so out is the matrix P itself."""

import torch
from torch import Tensor

from experiments.probe.base import DIM, Answer, Subject

QUERIES, KEYS = 24, DIM


def ask(subject: Subject) -> Answer:
    """bottom right, top left, no mask, or another."""
    seen = visible(subject, QUERIES)
    ones = torch.ones_like(seen)
    masks = {"bottom right": ones.tril(KEYS - QUERIES), "top left": ones.tril(), "no mask at all": ones}
    name = next((name for name, mask in masks.items() if torch.equal(seen, mask)), "another mask")
    return Answer(name, {"keys_seen_by_first_query": int(seen[0].sum()), "keys_seen_by_last": int(seen[-1].sum())})


def visible(subject: Subject, queries: int) -> Tensor:
    """bool (queries, 64): whether a query gives a key weight, all scores being 0."""
    q, k = subject.given(subject.zeros(queries)), subject.given(subject.zeros(KEYS))
    identity = subject.given(torch.eye(DIM, dtype=torch.float64)[None, :, None, :])
    out, _ = subject.forward(q, k, identity, causal=True)
    return (out[0, :, 0].cpu() > 1 / (2 * KEYS)).bool()  # a key that is seen weighs at least 1 / 64
