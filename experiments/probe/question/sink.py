"""Can an attention sink be put over it? A sink is one more key of score 0 without a value: as that key, and by lse.

out times exp(lse - z), z = ln(exp(lse) + 1), is what models do over a kernel; its backward then gets that out and z.
"""

import torch.nn.functional as F
from torch import Tensor

from accuracy.kernel.block import sink
from experiments.probe.base import DIM, Answer, Subject

ROUNDINGS = 16  # as `strides`; out is rounded once more. Without its sink an out of 6 keys is wrong by a tenth
LSE = 1e-4
KEYS = 6


def ask(subject: Subject) -> Answer:
    """as one more key, or what is wrong."""
    q, dout = (subject.random(1, 48, 2, DIM, seed=seed) for seed in (0, 3))
    k, v = (subject.random(1, KEYS, 2, DIM, seed=seed) for seed in (1, 2))
    expected = subject.both(q, _one_more(k), _one_more(v), dout)
    out, lse = sink.apply(*subject.forward(q, k, v), (0.0, 0.0))
    gradients = subject.backward(dout, q, k, v, out, lse)
    found = dict(zip(expected, (out, lse, *gradients), strict=True))
    errors = {name: _error(name, x, expected[name]) for name, x in found.items()}
    wrong = [
        name for name, error in errors.items() if not error <= (LSE if name == "lse" else ROUNDINGS * subject.unit)
    ]
    return Answer(f"wrong {' '.join(wrong)}" if wrong else "by lse as by one more key", errors)


def _one_more(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 0, 0, 0, 1))


def _error(name: str, x: Tensor, expected: Tensor) -> float:
    exact = expected[:, :KEYS].double() if name in ("dk", "dv") else expected.double()
    return float((x.double() - exact).norm() / exact.norm())
