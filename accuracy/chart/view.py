"""What does a section hand to the page? Plain values that the templates render; no layout here."""

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class TableCell:
    """One table cell. detail: a second, smaller line; kind: a CSS class; heat: -1..1, its place on the
    diverging scale, None for no colour; hint: shown on hovering.
    """

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
    """One entry of a legend. slot: which colour and marker; mark: the drawn symbol."""

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
    """Charts and tables of one facet (a dtype, where only dtypes vary). data: the charts' numbers as
    tables.
    """

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


@dataclass(frozen=True)
class Chip:
    """A short verdict. tone: good, bad, or open."""

    text: str
    tone: str
