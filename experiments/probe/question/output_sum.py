"""In how many bits is P V summed over the keys, near and far? Four keys have weight 1/4, all others 0.

See `cancellation`. Near keys share a tile; keys 512 apart do not. A kernel that sums within a tile in float32 and over
tiles in less, or the other way round, shows two formats.
"""

from torch import Tensor

from experiments.probe.base import Answer, Subject
from experiments.probe.cancellation import ORDERS, bits, terms, told
from experiments.probe.question.denominator_sum import HIDDEN, KEYS, PLACES


def ask(subject: Subject) -> Answer:
    """One format, or one for each distance."""
    kept = {name: bits(_out(subject, at, True), _out(subject, at, False)) for name, at in PLACES.items()}
    return Answer(told(kept), kept)


def _out(subject: Subject, at: tuple[int, ...], large: bool) -> Tensor:
    """(12 orders, 64 values of t)."""
    batch = len(ORDERS)
    q, k, v = subject.zeros(1, batch=batch), subject.zeros(KEYS, batch=batch), subject.zeros(KEYS, batch=batch)
    q[..., 0] = 8  # 8 times the scale is 1
    k[..., 0] = HIDDEN
    k[:, at] = 0
    v[:, at, 0] = terms(large)
    out, _ = subject.forward(*(subject.given(x) for x in (q, k, v)))
    return out[:, 0, 0]
