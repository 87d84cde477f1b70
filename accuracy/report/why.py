"""Section: bug or rounding, and why? A card for each verdict that is not rounding, and every verdict."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from accuracy.chart.view import Table, TableCell, cells, grid
from accuracy.core.dtype import DTYPES
from accuracy.core.number import MISSING, TIMES, count, listed, ratio, scientific, signed
from accuracy.report.folder import Material
from accuracy.report.worst import worst_cell
from accuracy.results.table import ALL_TENSORS
from accuracy.verdict import words
from accuracy.verdict.facts import Cause, Facts
from accuracy.verdict.label import LABELS, ROUNDING

MOST_CARDS = 6  # in the open, gravest first
MOST_NAMES = 12
MOST_LINKS = 24
MOST_BLOCKS = 32  # ranks, of a matrix of queries and keys
MOST_FINDINGS = 60


@dataclass(frozen=True)
class Card:
    """names: the variant, or several with the same diagnosis; evidence, blocks: of the first of them, whose worst case
    the link shows in the explorer."""

    names: tuple[str, ...]
    label: str
    is_bug: bool
    sentence: str
    evidence: tuple[str, ...]
    link: str = ""
    blocks: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Why:
    """cards: gravest first; healthy: of the rest, in a line; not_tried: what was not tried, in a sentence; all: every
    verdict that is not rounding."""

    cards: tuple[Card, ...]
    healthy: str
    not_tried: str
    all: Table
    most: int = MOST_CARDS


def why(made: Material) -> Why:
    """Variants with the same diagnosis share a card."""
    same: dict[tuple[str, str], list[Facts]] = {}
    for each in made.found:
        if each.label != ROUNDING:
            same.setdefault((each.label, words.diagnosis(each)), []).append(each)
    cards: list[Card] = []
    for (label, sentence), facts in same.items():
        names, first = tuple(each.variant for each in facts), facts[0]
        link = _link(first, made.measured) if len(cards) < MOST_LINKS else ""
        cards.append(Card(names, label, first.is_bug, sentence, first.evidence, link, tuple(_blocks(first))))
    not_tried = next((words.not_tried(each) for each in made.found if each.not_tried), "")
    return Why(tuple(cards), _healthy(made.found), not_tried, _findings(made.cells))


def _blocks(facts: Facts) -> Iterator[Table]:
    """A matrix of queries and keys for the proven causes that name the blocks which are not counted once."""
    same: dict[tuple[Any, ...], list[Cause]] = {}
    for cause in facts.proven:
        if cause.blocks and cause.world_size <= MOST_BLOCKS:
            same.setdefault((cause.world_size, *cause.blocks.items()), []).append(cause)
    for (size, *blocks), causes in same.items():
        counted = dict(blocks)
        cells = {
            (f"queries of rank {i}", f"keys {j}"): _block(counted.get((i, j))) for i in range(size) for j in range(size)
        }
        where = f"{listed(each.tensor for each in causes)}, {causes[0].dtype}, {size} ranks"
        columns = [f"keys {j}" for j in range(size)]
        yield grid(f"How often each block is counted: {where}", ["by rank"], columns, cells)


def _block(times: float | None) -> TableCell:
    if times is None:
        return TableCell(MISSING, kind="absent")
    return TableCell("missing" if times == 0 else f"{times:g}{TIMES}", kind="flagged")


def _link(blamed: Facts, measured: pd.DataFrame) -> str:
    """The address of the explorer's state that shows the worst of it."""
    worst = worst_cell(measured, blamed)
    if worst is None:
        return ""
    state = {"facet": worst.facet, "series": worst.series, "tensor": worst.tensor, "world_size": worst.world_size}
    return f"#explorer?{urlencode(state)}"


def _healthy(found: list[Facts]) -> str:
    healthy = [each for each in found if each.label == ROUNDING]
    if not healthy:
        return ""
    times = [width.times for each in healthy for width in each.widths[:1]]
    most = max((each for each in times if not math.isnan(each)), default=None)
    tensors = "times the single-device kernel's error in every tensor but lse"
    within = "" if most is None else f", within {most:.2f} {tensors}"
    more = f" and {len(healthy) - MOST_NAMES} more" if len(healthy) > MOST_NAMES else ""
    listed = ", ".join(each.variant for each in healthy[:MOST_NAMES]) + more
    return f"{count(len(healthy), 'variant')} merely {'rounds' if len(healthy) == 1 else 'round'}{within}: {listed}."


def _findings(judged: pd.DataFrame) -> Table:
    """Everything that is not mere rounding: a row for world sizes with the same label, with the largest's evidence."""
    order = judged.assign(
        _grave=judged["label"].map(LABELS.index),
        _bits=judged["dtype"].map(lambda dtype: DTYPES[dtype].precision),
        _tensor=judged["tensor"].map(ALL_TENSORS.index),
    )
    rows = []
    for _, same in order[order["label"] != ROUNDING].groupby(["_grave", "named", "_tensor", "_bits", "rule"]):
        last = same.sort_values("world_size").iloc[-1]
        sizes = ", ".join(map(str, sorted(same["world_size"].unique())))
        numbers = scientific(last["error_rel"]), ratio(last["x_single_device"]), signed(last["slope"])
        rows.append(cells(*last[["named", "tensor", "dtype"]], sizes, *last[["label", "rule", "sentence"]], *numbers))
    head = (
        "variant", "tensor", "dtype", "world size", "label", "rule", "evidence", "error", "x single device", "slope",
    )  # fmt: skip
    left = len(rows) - MOST_FINDINGS
    more = f", the first {MOST_FINDINGS}; {left} more" if left > 0 else ""
    caption = f"What is not mere rounding{more} (numbers of the largest world size)"
    return Table(caption, head, tuple(rows[:MOST_FINDINGS]))
