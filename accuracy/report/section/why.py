"""Section: why? A card for each verdict that is not rounding, and one line for the healthy."""

import re
from dataclasses import dataclass, replace
from urllib.parse import urlencode

import pandas as pd

from accuracy.core.number import count
from accuracy.report.answer.accused import accused
from accuracy.verdict.diagnosis import Diagnosis
from accuracy.verdict.label import ROUNDING

MOST_CARDS = 6  # in the open, gravest first
MOST_NAMES = 12
MOST_LINKS = 24
_UNTRIED = " Not tried: "


@dataclass(frozen=True)
class Card:
    """names: the variant, or several with the same story; evidence: of the first of them, whose worst case the link
    shows in the explorer."""

    names: tuple[str, ...]
    label: str
    is_bug: bool
    sentence: str
    evidence: tuple[str, ...]
    link: str = ""


@dataclass(frozen=True)
class Why:
    """cards: gravest first; healthy: of the rest, in a line; untried: what was not measured of any."""

    cards: tuple[Card, ...]
    healthy: str
    untried: str
    most: int = MOST_CARDS


def why(found: list[Diagnosis], measured: pd.DataFrame) -> Why:
    """Variants of which the same is said share a card. measured: labelled rows with the column `named`."""
    cards: dict[tuple[str, str], Card] = {}
    first: dict[tuple[str, str], Diagnosis] = {}
    for each in found:
        if each.label != ROUNDING:
            sentence = each.sentence.partition(_UNTRIED)[0]
            before = cards.get((each.label, sentence))
            names = (*(before.names if before else ()), each.variant)
            evidence = before.evidence if before else each.evidence
            cards[each.label, sentence] = Card(names, each.label, each.is_bug, sentence, evidence)
            first.setdefault((each.label, sentence), each)
    for key in list(cards)[:MOST_LINKS]:
        cards[key] = replace(cards[key], link=_link(first[key], measured))
    untried = dict.fromkeys(each.sentence.partition(_UNTRIED)[2] for each in found)
    return Why(tuple(cards.values()), _healthy(found), next(filter(None, untried), ""))


def _link(blamed: Diagnosis, measured: pd.DataFrame) -> str:
    """The address of the explorer's state that shows the worst of it."""
    worst = accused(measured, blamed)
    if worst is None:
        return ""
    state = {"facet": worst.facet, "series": worst.series, "tensor": worst.tensor, "world_size": worst.world_size}
    return f"#explorer?{urlencode(state)}"


def _healthy(found: list[Diagnosis]) -> str:
    names = [each.variant for each in found if each.label == ROUNDING]
    if not names:
        return ""
    largest = [re.search(r"within ([\d.]+) times", each.sentence) for each in found if each.label == ROUNDING]
    most = max((float(match[1]) for match in largest if match), default=None)
    tensors = "times the single-device kernel's error in every tensor but lse"
    within = "" if most is None else f", within {most:.2f} {tensors}"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    listed = ", ".join(names[:MOST_NAMES]) + more
    return f"{count(len(names), 'variant')} merely {'rounds' if len(names) == 1 else 'round'}{within}: {listed}."
