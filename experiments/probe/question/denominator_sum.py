"""In how many bits are the weights summed? Keys of weight 1, w, w, w: lse is ln(1 + 3 w), lost where 1 + w is 1.

The weights lie near, next to each other, or far, 512 keys apart: farther than tiles are wide. The large one comes first
or last. Fast kernels' exp and ln are good to some 14 to 20 bits: more than a 16-bit format has is not told apart.
"""

import math

import torch
from torch import Tensor

from experiments.probe.base import Answer, Subject
from experiments.probe.cancellation import named

KEYS, STEPS = 2048, 40
HIDDEN = -1000.0  # a score whose weight is 0
PLACES = {"near": (0, 1, 2, 3), "far": (0, 512, 1024, 1536)}
SURE = 11  # float16's


def ask(subject: Subject) -> Answer:
    """The fewest bits over distances and orders."""
    kept = {name: min(_bits(subject, at), _bits(subject, at[::-1])) for name, at in PLACES.items()}
    fewest = min(kept.values())
    return Answer(named(fewest) if fewest <= SURE else f"more than {SURE} bits", kept)


def _bits(subject: Subject, at: tuple[int, ...]) -> int:
    """at: the keys, the one of weight 1 first. Row t has w = about 2^-t, from a score that the dtype can hold."""
    scores = (torch.arange(STEPS, dtype=torch.float64) * math.log(2)).to(subject.torch_dtype).double()
    q, k = subject.zeros(STEPS), subject.zeros(KEYS)
    q[0, :, 0, 0], q[0, :, 0, 1] = 8 * scores, 8.0  # 8 times the scale is 1
    k[0, :, 0, 1] = HIDDEN
    k[0, at, 0, 1] = 0
    k[0, at[1:], 0, 0] = -1
    _, lse = subject.forward(*(subject.given(x) for x in (q, k, k)))
    expected = torch.log1p(3 * torch.exp(-scores)) * _one_bit(subject) / math.log(2)
    kept = (lse.double().cpu().flatten() - expected).abs() < 0.25 * expected
    lost = (~kept).nonzero()
    return int(lost[0]) if len(lost) else STEPS


def _one_bit(subject: Subject) -> float:
    """lse of two equal keys: ln 2 in the kernel's own base."""
    q, k = subject.given(subject.zeros(1)), subject.given(subject.zeros(2))
    lse: Tensor = subject.forward(q, k, k)[1]
    return float(lse.flatten()[0])
