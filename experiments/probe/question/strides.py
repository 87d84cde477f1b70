"""Do inputs that are not contiguous give other results? The same values, stored in five other ways."""

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.probe.base import DIM, Answer, Subject, same_bits

STORED: dict[str, Callable[[Tensor], Tensor]] = {
    "heads before tokens": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "one of three packed": lambda x: torch.stack([x + 1, x, x - 1], dim=2)[:, :, 1],
    "every second token": lambda x: torch.stack([x, x + 1], dim=2).flatten(1, 2)[:, ::2],
    "every second channel": lambda x: torch.stack([x, x + 1], dim=-1).flatten(-2)[..., ::2],
    "tokens before batch": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
}
ROUNDINGS = 16  # of the inputs' dtype, relative Frobenius norm: above it a result is wrong, not rounded otherwise
LSE = 1e-4  # the same for lse, which is kept in float32 by kernels whose exp has 14 bits at the least


def ask(subject: Subject) -> Answer:
    """No effect, or each storage with what it changes."""
    q, dout = (subject.random(2, 48, 4, DIM, seed=seed) for seed in (0, 3))
    k, v = (subject.random(2, 80, 2, DIM, seed=seed) for seed in (1, 2))
    expected = subject.both(q, k, v, dout, causal=True)
    effects = {name: _effect(subject, expected, [way(x) for x in (q, k, v, dout)]) for name, way in STORED.items()}
    found = [f"{name}: {effect}" for name, effect in effects.items() if effect]
    return Answer(", ".join(found) or "no effect", effects)


def _effect(subject: Subject, expected: dict[str, Tensor], tensors: list[Tensor]) -> str:
    try:
        results = subject.both(*tensors, causal=True)
    except Exception as error:
        return f"refused ({type(error).__name__})"
    wrong: list[str] = []
    otherwise: list[str] = []
    for name, x in results.items():
        if same_bits(x, expected[name]):
            continue
        exact = expected[name].double()
        distance = float((x.double() - exact).norm() / exact.norm())
        close = distance <= (LSE if name == "lse" else ROUNDINGS * subject.unit)
        (otherwise if close else wrong).append(name)
    texts = [f"{word} {' '.join(names)}" for word, names in (("wrong", wrong), ("other bits in", otherwise)) if names]
    return " and ".join(texts)
