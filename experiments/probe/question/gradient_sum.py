"""In how many bits are dq, dk and dv summed: over tokens near and far, and over the query heads of a group?

The backward takes any out and lse. With scores of 0 and lse = 0 all weights P are 1; with out = 0 delta is 0, and dS is
dP. So dq = scale sum dP k, dk = scale sum dP q and dv = sum dout: sums of terms that are given. See `cancellation`.
"""

import torch
from torch import Tensor

from experiments.probe.base import Answer, Subject
from experiments.probe.cancellation import ORDERS, bits, terms, told
from experiments.probe.question.denominator_sum import KEYS, PLACES

BATCH = len(ORDERS)
HEADS = "over heads"


def ask(subject: Subject) -> Answer:
    """Each gradient's formats."""
    kept: dict[str, dict[str, int]] = {name: {} for name in ("dq", "dk", "dv")}
    for place, at in PLACES.items():
        kept["dq"][place] = bits(*(_dq(subject, at, large) for large in (True, False)))
        for name, index in (("dk", 0), ("dv", 1)):
            kept[name][place] = bits(*(_over_rows(subject, at, large)[index] for large in (True, False)))
    for name, index in (("dk", 0), ("dv", 1)):
        kept[name][HEADS] = bits(*(_over_heads(subject, large)[index] for large in (True, False)))
    texts = {name: told(places) for name, places in kept.items()}
    alike = {text: [name for name in texts if texts[name] == text] for text in texts.values()}
    if len(alike) == 1:
        return Answer(texts["dq"], kept)
    return Answer("; ".join(f"{' '.join(names)}: {text}" for text, names in alike.items()), kept)


def _dq(subject: Subject, at: tuple[int, ...], large: bool) -> Tensor:
    """(12, 64): the terms are keys; only they have a value that dout meets, so that dP is 1 for them and 0 else."""
    zero, k, v = subject.zeros(1, batch=BATCH), subject.zeros(KEYS, batch=BATCH), subject.zeros(KEYS, batch=BATCH)
    k[:, at, 0] = terms(large)
    v[:, at, 0, 0] = 1
    return _gradients(subject, _first_channel(zero), zero, k, v)[0][:, 0, 0]


def _over_rows(subject: Subject, at: tuple[int, ...], large: bool) -> tuple[Tensor, Tensor]:
    """dk and dv (12, 64) of one key: the terms are queries for dk, and rows of dout for dv."""
    rows, active = subject.zeros(KEYS, batch=BATCH), subject.zeros(KEYS, batch=BATCH)
    rows[:, at, 0] = terms(large)
    active[:, at, 0, 0] = 1
    return _dk_dv(subject, rows, active)


def _over_heads(subject: Subject, large: bool) -> tuple[Tensor, Tensor]:
    """The same where each term is a query head of one row, and all of them read the same key."""
    rows = subject.zeros(1, len(ORDERS[0]), BATCH)
    rows[:, 0] = terms(large)
    return _dk_dv(subject, rows, _first_channel(rows))


def _dk_dv(subject: Subject, rows: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """dk where the rows are queries, and dv where they are dout; active: a dout that makes dP 1 for the rows' terms."""
    zero = subject.zeros(1, batch=BATCH)
    _, dk, _ = _gradients(subject, active, rows, zero, _first_channel(zero))
    _, _, dv = _gradients(subject, rows, torch.zeros_like(rows), zero, zero)
    return dk[:, 0, 0], dv[:, 0, 0]


def _first_channel(like: Tensor) -> Tensor:
    """1 in the first channel, else 0."""
    ones = torch.zeros_like(like)
    ones[..., 0] = 1
    return ones


def _gradients(subject: Subject, dout: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """The backward for out = 0 and lse = 0."""
    batch, rows, heads, _ = q.shape
    dtype = torch.float64 if subject.dtype == "float64" else torch.float32
    lse = torch.zeros(batch, heads, rows, dtype=dtype, device=subject.device)
    dout, q, k, v, out = (subject.given(x) for x in (dout, q, k, v, torch.zeros_like(q)))
    return subject.backward(dout, q, k, v, out, lse)
