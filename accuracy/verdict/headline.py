"""The template of a report's first screen: its headline, and what to do.

In: the facts of every variant, gravest first, and the cell that the page is about. Out: text.
"""

import math
from collections.abc import Sequence

from accuracy.core.number import count, listed, plain
from accuracy.verdict import words
from accuracy.verdict.attribution import NAMES, Attribution
from accuracy.verdict.facts import Facts, Worst
from accuracy.verdict.label import (
    HARDLY_CHECKED,
    INVALID,
    MISSING_RANKS,
    NONDETERMINISTIC,
    NOTHING_FOUND,
    ONE_RANK,
    TOO_LITTLE,
)  # fmt: skip

MOST_NAMES = 3
WORTH_REPORTING = 1.02  # times single device's error: twice the 1% that errors spread over seeds


def nothing(failed: int, unsupported: int, reason: str) -> str:
    """Of a run without numbers: how many cases failed and were unsupported, and the most frequent reason."""
    parts = [f"{count(failed, 'case')} failed"] if failed else []
    parts += [f"{count(unsupported, 'case is', 'cases are')} unsupported"] if unsupported else []
    return f"Nothing was measured. {' and '.join(parts)}{f': {reason}' if reason else ''}".rstrip(".") + "."


def blamed(found: Sequence[Facts]) -> Facts | None:
    """The gravest variant, if any does more than round."""
    return next((each for each in found if each.label not in NOTHING_FOUND), None)


def headline(found: Sequence[Facts], worst: Worst | None, judged: Sequence[str], sizes: Sequence[int]) -> str:
    """The verdict in one sentence, and the worst cell. judged: the tensors that are compared; sizes: the numbers of
    ranks that were measured."""
    if first := blamed(found):
        of_kernel = f" with kernel {worst.kernel}" if worst and worst.alone and first.variant == "single_device" else ""
        return f"{first.variant}{of_kernel}: {words.what(first)}. {_cell(worst, first) if worst else ''}".strip()
    if worst is None:
        return "No case has a finite ratio to single device."
    missing = next((each.missing_sizes for each in found if each.label == MISSING_RANKS), {})
    none = words.not_on(missing) if missing else "No bug found"
    none = "Hardly checked" if any(each.label == HARDLY_CHECKED for each in found) else none
    none = words.ONE_RANK_ONLY if any(each.label == ONE_RANK for each in found) else none
    left_out = f" ({' and '.join(worst.left_out)} apart)" if worst.left_out else ""
    if worst.alone:
        return f"{none}: every kernel merely rounds{left_out}. Furthest from exact {_furthest(worst)}{_beyond(worst)}."
    up_to = "up to" if len({size for size in sizes if size > 1}) > 1 else "at"
    whose = f"{listed(judged)} of every variant stay" if worst.beyond else "every variant stays"
    within = f"within {times(worst.most)} times single device's error{left_out}"
    return f"{none}: {up_to} {count(max(sizes), 'rank')} {whose} {within}. Furthest {_furthest(worst)}{_beyond(worst)}."


def times(value: float) -> str:
    """`3.81`, `4130`: a ratio inside a sentence, with the digits that it has in a table."""
    return plain(value) if math.isfinite(value) else "infinitely many"


def _cell(worst: Worst, first: Facts) -> str:
    at = f"in {worst.dtype} at {count(worst.world_size, 'rank')}"
    if first.label == INVALID:
        return f"Seen in {worst.tensor} {at}."
    there = f", {times(worst.there)} times on rank {worst.rank}" if worst.rank is not None else ""
    whose = "the rounding floor" if worst.alone else "single device's error"
    return f"{worst.tensor} has {times(worst.times)} times {whose} {at}{there}."


def _furthest(worst: Worst) -> str:
    """`in bfloat16 is dq of striped, 1.25 times at 4 ranks`."""
    of = worst.named if worst.alone else worst.spoken
    at = "the rounding floor" if worst.alone else f"at {count(worst.world_size, 'rank')}"
    return f"in {worst.dtype} is {worst.tensor} of {of}, {times(worst.times)} times {at}"


def _beyond(worst: Worst) -> str:
    """The tensors that the sentence leaves out, where they go further than it says."""
    parts = []
    for each in worst.beyond:
        at = "" if each.alone else f" at {count(each.world_size, 'rank')}"
        parts.append(f"{each.tensor} of {each.named if each.alone else each.spoken} has {times(each.times)} times{at}")
    if worst.without_digits:
        parts.append(f"single device has no error in {worst.without_digits[0]}, which has one")
    return f"; {'; '.join(parts)}" if parts else ""


def advice(
    found: Sequence[Facts], worst: Worst | None, chosen: str, instead: tuple[str, float] | None, attributed: str
) -> str:
    """The line below the headline: the cause as far as it is proven, and what to do. chosen: the words that choose the
    blamed variant on the command line; instead: a sound variant that is clearly nearer, with its ratio."""
    first = blamed(found)
    if first is None and worst is None:
        return "Cases without numbers, below, has the reasons. The same command measures what is left."
    if first is None and any(each.label in TOO_LITTLE for each in found):
        return "Measure it on more ranks, on a machine that has them, or give world_size= if fewer are meant."
    if first is None:
        return f"{attributed} Nothing to mend here: choose by time and memory.".strip()
    others = list(dict.fromkeys(each.variant for each in found if each.label not in NOTHING_FOUND))[1:]
    more = f" and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
    cause = f"Cause: {first.proven[0].text}." if first.proven else attributed or "No cause was proven."
    take = f" Take {instead[0]} ({times(instead[1])} times single device's error) instead." if instead else ""
    if "returned" in first.numbers:
        remedy = "It is judged once it returns what is expected: a wrapper of a few lines can do that."
    elif first.is_bug:
        kernel = f" kernel={worst.kernel}" if worst and worst.alone else ""
        command = f"accuracy experiment=diagnose {chosen}{kernel}"
        remedy = f"Do not use it before it is mended: {command} names the step.{take}"
    elif first.label == NONDETERMINISTIC:
        remedy = "Compare its runs within rounding, not bit by bit; a deterministic kernel repeats."
    else:
        remedy = take.strip() or "Keep its sums and partial results in float32."
    also = f" Also flagged: {', '.join(others[:MOST_NAMES])}{more}." if others else ""
    return f"{cause} {remedy}{also}"


def attributed(found: Sequence[Attribution]) -> str:
    """Which rounding causes most of each tensor's excess over single device; dtypes and sizes as one, from the least
    share to the largest."""
    shares: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for each in found:
        if each.tensor not in ("lse", "delta") and each.x_single_device > WORTH_REPORTING and each.excess:
            place, share = max(each.excess.items(), key=lambda item: item[1])
            share = min(1.0, share)  # single device's own seed may be a little worse than its places alone
            shares.setdefault(each.variant, {}).setdefault(place, []).append((each.tensor, share))
    sentences = []
    for variant, places in shares.items():
        made = []
        for place, pairs in places.items():
            tensors, every = zip(*pairs, strict=True)
            span = " to ".join(dict.fromkeys(f"{share:.0%}" for share in (min(every), max(every))))
            made.append(f"{span} in {', '.join(dict.fromkeys(tensors))} comes from the {NAMES[place]}")
        sentences.append(f"Of {variant}'s excess over single device, {'; '.join(made)}.")
    return " ".join(sentences)
