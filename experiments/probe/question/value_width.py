"""Does it take values of another width than keys (MLA's heads)? Beside the same kernel on values with zeros."""

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core.errors import one_line
from experiments.probe.base import DIM, Answer, Subject

NARROW, WIDE = 32, 96
ROUNDINGS = 16  # as `strides`; a lost column of values costs 1 / sqrt(32)
LSE = 1e-4


def ask(subject: Subject) -> Answer:
    """both, or what becomes of narrower and of wider values."""
    found = {name: _answer(subject, width) for name, width in (("narrower", NARROW), ("wider", WIDE))}
    if set(found.values()) == {"taken"}:
        return Answer("narrower and wider ones", found)
    return Answer("; ".join(f"{name}: {each}" for name, each in found.items()), found)


def _answer(subject: Subject, width: int) -> str:
    q, k = (subject.random(1, 48, 2, DIM, seed=seed) for seed in (0, 1))
    v, dout = (subject.random(1, 48, 2, width, seed=seed) for seed in (2, 3))
    try:
        found = subject.both(q, k, v, dout)
    except Exception as error:
        return f"refused: {one_line(error)[:60]}"
    expected = [subject.both(q, k, _filled(v, part), _filled(dout, part)) for part in _parts(width)]
    wrong = [name for name, x in found.items() if not _close(subject, name, x, _joined(name, expected, width))]
    return f"wrong {' '.join(wrong)}" if wrong else "taken"


def _parts(width: int) -> list[slice]:
    return [slice(begin, min(begin + DIM, width)) for begin in range(0, width, DIM)]


def _filled(x: Tensor, part: slice) -> Tensor:
    return F.pad(x[..., part], (0, DIM - (part.stop - part.start)))


def _joined(name: str, expected: list[dict[str, Tensor]], width: int) -> Tensor:
    """out and dv side by side; dq and dk are sums over columns of values, lse knows none."""
    parts = [each[name].double() for each in expected]
    if name in ("out", "dv"):
        return torch.cat(parts, -1)[..., :width]
    return parts[0] if name == "lse" else torch.stack(parts).sum(0)


def _close(subject: Subject, name: str, x: Tensor, expected: Tensor) -> bool:
    if x.shape != expected.shape:
        return False
    limit = LSE if name == "lse" else ROUNDINGS * subject.unit
    return bool((x.double() - expected).norm() <= limit * expected.norm())
