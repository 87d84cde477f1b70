"""The template of a report's first screen: its badge, its title, its numbers, and what to do.

In: the facts of every variant, gravest first, and the cell that the page is about. Out: text.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from accuracy.core.number import count, listed, plain, ratio
from accuracy.verdict import label, words
from accuracy.verdict.facts import Facts, Worst

MOST_NAMES = 3
MOST_WORDS = 12  # of a title
MOST_TILES = 3  # beside that of the cases
SHORT = {  # what tensors do, in the words that a title has room for
    **words.VERBS, "unwaited": "is read before it arrives", label.INVALID: "is invalid", label.LOGIC: "is wrong",
    label.BIASED: "is biased to one side",
    label.PRECISION_FLOOR: "is only as good as {formats}",
}  # fmt: skip


class Tile(NamedTuple):
    """A number of the first screen and what it is of."""

    value: str
    label: str


def blamed(found: Sequence[Facts]) -> Facts | None:
    """The gravest variant, a bug first, if any does more than round."""
    wrong = [each for each in found if each.label not in label.NOTHING_FOUND]
    return next((each for each in wrong if each.is_bug), wrong[0] if wrong else None)


def badge(found: Sequence[Facts], partial: bool) -> str:
    """The gravest label of a table as the badge's word; partial: planned cases have no row yet."""
    if not found:
        return label.badge(label.NOT_MEASURED, False)
    word = label.badge(found[0].label, any(each.is_bug for each in found))
    return label.badge(label.MISSING_RANKS, False) if partial and found[0].label in label.NOTHING_FOUND else word


def title(found: Sequence[Facts], worst: Worst | None, size: int) -> str:
    """The verdict in at most MOST_WORDS words. size: the largest number of ranks that was measured."""
    if not found:
        return "Nothing was measured"
    if first := blamed(found):
        of_kernel = f" with kernel {worst.kernel}" if worst and worst.alone and first.variant == "single_device" else ""
        return within(words.what(first, SHORT), *_where(first), before=f"{first.variant}{of_kernel}: ")
    least = found[0]
    if least.label == label.ONE_RANK:
        return "No bug found, but on one rank only"
    if least.label == label.HARDLY_CHECKED:
        return f"No bug found in {least.cases - least.failed:,} of {count(least.cases, 'case')}"
    if least.label == label.MISSING_RANKS:
        return within("No bug found", f"; not measured on {listed(least.missing_sizes)} ranks")
    if worst is None:
        return "No case has a finite ratio to single device"
    return (
        "No bug found: every kernel merely rounds"
        if worst.alone
        else f"No bug found {'up to' if size > 1 else 'on'} {count(size, 'rank')}"
    )


def within(text: str, *clauses: str, before: str = "") -> str:
    """A text with what has room in MOST_WORDS words: each clause behind it, and what stands before."""
    for start, clause in [(before, ""), *(("", each) for each in clauses)]:
        longer = f"{start}{text}{clause}"
        text = longer if len(longer.split()) <= MOST_WORDS else text
    return text


def _where(first: Facts) -> Iterator[str]:
    """The one condition that tells most, as clauses behind a title."""
    if first.sizes_right:
        least = min(first.sizes_wrong)
        run = max(first.sizes_right) < least
        yield f" from {least} ranks on" if run else f" on {listed(first.sizes_wrong)} ranks"
    elif first.settings:
        yield f" only with {' and '.join(map(' or '.join, first.settings))}"
    if first.sound_dtypes or first.hidden_dtypes:
        yield f" in {listed(first.dtypes)}"


def tiles(found: Sequence[Facts], worst: Worst | None, size: int, cases: Mapping[str, int]) -> tuple[Tile, ...]:
    """The numbers of a first screen, at most four. cases: how many there are of each kind, measured ones first."""
    first, made = blamed(found), list[Tile]()
    if worst and first and first.label == label.INVALID:
        made.append(Tile(worst.tensor, f"{worst.dtype}, {count(worst.world_size, 'rank')}: seen there"))
    elif worst:
        whose = "the rounding floor" if worst.alone else "single device's error"
        apart = f" ({' and '.join(worst.left_out)} apart)" if worst.left_out and not first else ""
        made.append(Tile(ratio(worst.times), f"{whose}{apart}: {_cell(worst)}"))
    if worst and worst.rank is not None and first and first.label != label.INVALID:
        made.append(Tile(ratio(worst.there), f"on rank {worst.rank}, the worst"))
    elif worst and worst.beyond:
        made.append(Tile(ratio(worst.beyond[0].times), f"further, but told apart: {_cell(worst.beyond[0])}"))
    if first and first.steps:
        made.append(Tile(f"{min(first.sizes_wrong)} ranks", first.steps))
    elif size:
        made.append(Tile(count(size, "rank"), "at most"))
    (_, done), *others = cases.items()
    more = ", ".join(f"{number:,} {kind}" for kind, number in others if number)
    return (*made[:MOST_TILES], Tile(f"{done:,}", f"case{'s' * (done != 1)} measured{f', {more}' if more else ''}"))


def _cell(worst: Worst) -> str:
    of = worst.named if worst.alone else worst.spoken
    at = "" if worst.alone else f", {count(worst.world_size, 'rank')}"
    return f"{worst.tensor} of {of}, {worst.dtype}{at}"


def advice(found: Sequence[Facts], worst: Worst | None, instead: tuple[str, float] | None, reason: str) -> str:
    """The line below the numbers: the cause as far as it is proven, and what to do. instead: a sound variant that is
    clearly nearer, with its ratio; reason: the most frequent one of cases without numbers."""
    first = blamed(found)
    if first is None and worst is None:
        first_reason = f"The most frequent reason: {reason}. " if reason else ""
        return f"{first_reason}Cases without numbers, below, has all. The same command measures what is left."
    if first is None and any(each.label in label.TOO_LITTLE for each in found):
        return "Measure it on more ranks, on a machine that has them, or give world_size= if fewer are meant."
    if first is None:
        return "Nothing to mend here: choose by time and memory."
    others = list(dict.fromkeys(each.variant for each in found if each.label not in label.NOTHING_FOUND))[1:]
    more = f" and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
    unknown = f"No cause was {'proven' if any(name in first.causes for name in first.lead) else 'tried'}."
    cause = f"Cause: {first.proven[0].text}." if first.proven else unknown
    take = f" Take {instead[0]} ({plain(instead[1])} times single device's error) instead." if instead else ""
    if "returned" in first.numbers:
        remedy = "It is judged once it returns what is expected: a wrapper of a few lines can do that."
    elif first.is_bug:
        remedy = f"Do not use it before it is mended.{take}"
    elif first.label == label.NONDETERMINISTIC:
        remedy = "Compare its runs within rounding, not bit by bit; a deterministic kernel repeats."
    else:
        remedy = take.strip() or "Keep its sums and partial results in float32."
    also = f" Also flagged: {', '.join(others[:MOST_NAMES])}{more}." if others else ""
    return f"{cause} {remedy}{also}"
