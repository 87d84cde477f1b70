"""What are out, lse and the gradients where a query sees no key? 96 queries on 64 keys under a causal mask."""

import torch
from torch import Tensor

from experiments.probe.base import DIM, TENSORS, Answer, Subject
from experiments.probe.question.mask_alignment import visible

QUERIES, KEYS = 96, 64
EMPTY = QUERIES - KEYS  # rows, where the mask is aligned at the bottom right


def ask(subject: Subject) -> Answer:
    """The value of each tensor on those rows, dk and dv on all keys."""
    if visible(subject, QUERIES)[:EMPTY].any():
        return Answer("there are none: the first queries see keys")
    q, dout = (subject.random(1, QUERIES, 1, DIM, seed=seed) for seed in (0, 3))
    k, v = (subject.random(1, KEYS, 1, DIM, seed=seed) for seed in (1, 2))
    results = subject.both(q, k, v, dout, causal=True)
    rows = {name: _rows(name, x) for name, x in results.items()}
    values = {name: _value(rows[name]) for name in TENSORS[:3]}
    broken = [name for name in TENSORS[3:] if not rows[name].isfinite().all()]
    text = ", ".join(f"{name} {value}" for name, value in values.items())
    return Answer(text + (f"; {' and '.join(broken)} not finite" if broken else ""), values)


def _rows(name: str, x: Tensor) -> Tensor:
    if name in ("dk", "dv"):
        return x
    return (x.flatten()[:EMPTY] if name == "lse" else x[:, :EMPTY]).cpu()


def _value(x: Tensor) -> str:
    x = x.double()
    if x.isnan().any():
        return "NaN"
    if (x == x.flatten()[0]).all():
        return f"{float(x.flatten()[0]):g}".replace("-0", "0") if x.flatten()[0] == 0 else f"{float(x.flatten()[0]):g}"
    return "finite values" if torch.isfinite(x).all() else "finite and infinite values"
