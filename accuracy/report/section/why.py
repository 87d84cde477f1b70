"""Section: why? A card for each verdict that is not rounding, and one line for the healthy."""

import math
from dataclasses import dataclass
from urllib.parse import urlencode

import pandas as pd

from accuracy.core.number import count
from accuracy.report.answer.worst import worst_cell
from accuracy.verdict import words
from accuracy.verdict.facts import Facts
from accuracy.verdict.label import ROUNDING

MOST_CARDS = 6  # in the open, gravest first
MOST_NAMES = 12
MOST_LINKS = 24


@dataclass(frozen=True)
class Card:
    """names: the variant, or several with the same diagnosis; evidence: of the first of them, whose worst case the link
    shows in the explorer."""

    names: tuple[str, ...]
    label: str
    is_bug: bool
    sentence: str
    evidence: tuple[str, ...]
    link: str = ""


@dataclass(frozen=True)
class Why:
    """cards: gravest first; healthy: of the rest, in a line; not_tried: what was not tried, in a sentence."""

    cards: tuple[Card, ...]
    healthy: str
    not_tried: str
    most: int = MOST_CARDS


def why(found: list[Facts], measured: pd.DataFrame) -> Why:
    """Variants with the same diagnosis share a card. measured: labelled rows with the column `named`."""
    same: dict[tuple[str, str], list[Facts]] = {}
    for each in found:
        if each.label != ROUNDING:
            same.setdefault((each.label, words.diagnosis(each)), []).append(each)
    cards = tuple(
        Card(
            tuple(each.variant for each in facts),
            label,
            facts[0].is_bug,
            sentence,
            facts[0].evidence,
            _link(facts[0], measured) if number < MOST_LINKS else "",
        )
        for number, ((label, sentence), facts) in enumerate(same.items())
    )
    return Why(cards, _healthy(found), next((words.not_tried(each) for each in found if each.not_tried), ""))


def _link(blamed: Facts, measured: pd.DataFrame) -> str:
    """The address of the explorer's state that shows the worst of it."""
    worst = worst_cell(measured, blamed)
    if worst is None:
        return ""
    state = {"facet": worst.facet, "series": worst.series, "tensor": worst.tensor, "world_size": worst.world_size}
    return f"#explorer?{urlencode(state)}"


def _healthy(found: list[Facts]) -> str:
    names = [each.variant for each in found if each.label == ROUNDING]
    if not names:
        return ""
    times = [width.times for each in found if each.label == ROUNDING for width in each.widths[:1]]
    most = max((each for each in times if not math.isnan(each)), default=None)
    tensors = "times the single-device kernel's error in every tensor but lse"
    within = "" if most is None else f", within {most:.2f} {tensors}"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    listed = ", ".join(names[:MOST_NAMES]) + more
    return f"{count(len(names), 'variant')} merely {'rounds' if len(names) == 1 else 'round'}{within}: {listed}."
