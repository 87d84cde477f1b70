"""What does a section hand to the page? Plain values that the templates render; no layout here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from accuracy.core.number import MISSING


@dataclass(frozen=True)
class TableCell:
    """One table cell. detail: a second, smaller line; kind: a CSS class; heat: -1..1, its place on the diverging scale,
    None for no colour; hint: shown on hovering."""

    text: str
    detail: str = ""
    kind: str = ""
    heat: float | None = None
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """rows: the first cell of each is its header."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]


@dataclass(frozen=True)
class Key:
    """One entry of a legend. css: class of its line in the charts; mark: the drawn symbol."""

    label: str
    css: str
    mark: Markup


@dataclass(frozen=True)
class Chart:
    """A drawn figure with its text alternative inside."""

    svg: Markup
    title: str


@dataclass(frozen=True)
class Panel:
    """Charts and tables of one facet (a dtype, where only dtypes vary). data: the
    charts' numbers as tables."""

    slug: str
    label: str
    note: str = ""
    legend: tuple[Key, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    data: tuple[Table, ...] = ()


def cells(*values: object) -> tuple[TableCell, ...]:
    """A row of plain cells."""
    return tuple(value if isinstance(value, TableCell) else TableCell(str(value)) for value in values)


def grid(
    caption: str, corner: Iterable[str], columns: Iterable[str], found: Mapping[Any, object], lack: object = MISSING
) -> Table:
    """A table out of its cells by (*row, column): a row for each beginning of a key, under `corner` the beginning."""
    columns = tuple(columns)
    keys = dict.fromkeys(key[:-1] for key in found)
    rows = tuple(cells(*key, *(found.get((*key, name), lack) for name in columns)) for key in keys)
    return Table(caption, (*corner, *columns), rows)
