"""Signatures of known faults: a pattern in, a cause in plain words out. An unknown pattern is described, not guessed.

One table, read from the top. Each entry says which marks must all be there; sources are the reports of
accuracy/selfcheck/fault/*.py, whose planted copies the tests check the table with.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from accuracy.verdict.label import BIASED, EXCESS_ROUNDING, INVALID, LOGIC, NONDETERMINISTIC, PRECISION_FLOOR
from accuracy.verdict.pattern import Pattern

GRADIENTS = {"dq", "dk", "dv"}
BASE_2 = 1 / math.log(2) - 1  # relative error of a logarithm to base 2 that is taken for a natural one


@dataclass(frozen=True)
class Signature:
    """A known fault: its marks, and what it looks like."""

    name: str
    fits: Callable[[Pattern], bool]
    cause: str


def _only_gradients(pattern: Pattern) -> bool:
    return bool(pattern.tensors) and set(pattern.tensors) <= GRADIENTS


def _from_rank_one(pattern: Pattern) -> bool:
    """dq is right on rank 0 and worse on every later one."""
    return pattern.ranks_wrong.get("dq") == tuple(range(1, pattern.size)) and pattern.size > 2


def _uncleared(pattern: Pattern) -> bool:
    last_right = all(pattern.size - 1 not in pattern.ranks_wrong.get(name, ()) for name in ("dk", "dv"))
    rising = pattern.trend.get("dq") == "rising"
    return pattern.label == LOGIC and _only_gradients(pattern) and _from_rank_one(pattern) and last_right and rising


def _alias(pattern: Pattern) -> bool:
    wide = set(pattern.dtypes) <= {"float32", "float64"}
    return pattern.label == LOGIC and _only_gradients(pattern) and wide and "bfloat16" in pattern.sound_dtypes


def _growing(pattern: Pattern) -> bool:
    return any(growth.low > 0.1 for growth in pattern.growth.values())


def _exact_in_format(pattern: Pattern) -> bool:
    """Every value is, and not only in cases of that format, where lse may just have been kept in the inputs' dtype."""
    coarser = any(dtype != floor for floor, dtypes in pattern.floors.items() for dtype in dtypes)
    return pattern.label == PRECISION_FLOOR and "every value" in pattern.sentence and coarser


def _empty_merge(pattern: Pattern) -> bool:
    everywhere = "gaussian" in pattern.inputs and "poisoned" not in pattern.numbers and pattern.sound_at_one
    return (
        pattern.label == INVALID and everywhere and pattern.sound_at_one and bool({"out", "lse"} & set(pattern.tensors))
    )


def _heads_summed(pattern: Pattern) -> bool:
    only = pattern.label == EXCESS_ROUNDING and set(pattern.tensors) <= {"dk", "dv"}
    return only and pattern.grouped_heads and not pattern.sound_at_one


TABLE = (
    Signature(
        "aliased accumulator",
        _alias,
        "an accumulator that shares memory with a buffer of its own dtype: a cast to the same dtype is no copy",
    ),
    Signature("uncleared accumulator", _uncleared, "an accumulator that is not cleared between steps"),
    Signature(
        "lse to base 2",
        lambda p: p.label == LOGIC and abs(p.ratios_least.get("lse", 0) / BASE_2 - 1) < 0.05,
        "a logarithm to base 2 that is taken for a natural one",
    ),
    Signature(
        "lse read wrongly",
        lambda p: p.label == LOGIC and "lse" in p.at_one and "out" not in p.at_one and "out" in p.tensors,
        "an lse that comes in another layout or padding than it is read in: one rank's out is right, the merge is not",
    ),
    Signature(
        "leaking mask",
        lambda p: p.label == LOGIC and "future_differs" in p.numbers,
        "a mask that lets rows see later tokens",
    ),
    Signature(
        "miscounted keys",
        lambda p: p.label == LOGIC and "keys_counted" in p.numbers and {"out", "lse"} <= set(p.tensors),
        "a block bound or a mask that hides keys or shows them twice",
    ),
    Signature(
        "sums in 16 bits",
        lambda p: _only_gradients(p) and (_growing(p) or "dq" not in p.tensors)
        and (_exact_in_format(p) or (p.label == EXCESS_ROUNDING and not p.grouped_heads)),
        "gradients summed over steps or ranks in 16 bits",
    ),
    Signature("hard-coded cast", _exact_in_format, "a cast to a fixed dtype, whatever the inputs' is"),
    Signature(
        "overflow on peaked scores",
        lambda p: p.label == INVALID and p.inputs == ("peaked",),
        "the exponential of a difference of lse that overflows",
    ),
    Signature(
        "merge of empty partials",
        _empty_merge,
        "a merge of partials without keys: -inf less -inf",
    ),
    Signature(
        "unwritten memory",
        lambda p: p.label == INVALID and "poisoned" in p.numbers,
        "memory that is read before it is written: an unzeroed buffer or padding",
    ),
    Signature(
        "heads summed after rounding",
        _heads_summed,
        "gradients of query heads that are rounded before their group is summed",
    ),
    Signature(
        "biased normaliser",
        lambda p: p.label == BIASED and "out" in p.tensors and p.inputs != ("tied",),
        "a numerator and a denominator that use differently rounded weights",
    ),
    Signature(
        "biased product",
        lambda p: p.label == BIASED and "out" in p.tensors,
        "a product of unnormalised weights and values that is rounded to 16 bits",
    ),
    Signature(
        "atomic adds", lambda p: p.label == NONDETERMINISTIC, "sums whose order changes from run to run: atomic adds"
    ),
)  # fmt: skip


def signature_of(pattern: Pattern) -> Signature | None:
    """The first known fault whose marks are all there, or None."""
    return next((each for each in TABLE if each.fits(pattern)), None)
