"""To which base is lse a logarithm? 64 keys with equal scores of 0: lse is log 64."""

import math

from experiments.probe.base import Answer, Subject

KEYS = 64
BASES = {"e": 1.0, "2": 1 / math.log(2), "10": 1 / math.log(10)}


def ask(subject: Subject) -> Answer:
    """e, 2 or 10, or what it is instead."""
    q, k = subject.given(subject.zeros(3)), subject.given(subject.zeros(KEYS))
    _, lse = subject.forward(q, k, k)
    value = float(lse.flatten()[0])
    for base, factor in BASES.items():
        if abs(value / (factor * math.log(KEYS)) - 1) < 1e-4:  # the kernels' logarithms are good to 1e-6
            return Answer(base, {"lse_of_64_equal_keys": value})
    return Answer(f"no logarithm: {value:.6g} for {KEYS} equal keys", {"lse_of_64_equal_keys": value})
