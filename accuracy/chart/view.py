"""What does a section hand to the page? Plain values, and the one Jinja environment that fills templates with them.

No layout here: templates are autoescaped, and all pages share a style, in which a variant has one colour.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from accuracy.core.number import MISSING

PAGE = Path(__file__).parent / "page"
PALETTE = (  # on a light and on a dark ground, each at least 3:1 against it
    ("#0072b2", "#4fa8e8"), ("#c84e00", "#f0803c"), ("#00805c", "#2cc298"), ("#b0508a", "#e29ac6"),
    ("#9a6500", "#e6a93a"), ("#007d8a", "#3fc3cf"), ("#6a4fb3", "#a895f0"), ("#6b7000", "#c0c44a"),
    ("#c2273b", "#f2707e"), ("#7a4a2b", "#c99a76"), ("#566678", "#9fb0c2"), ("#a0269e", "#dd7fdb"),
)  # fmt: skip
INK = -1  # the page's ink, which the single-device variant has
VARIANTS = ("ring", "llama3", "zigzag", "striped", "bpt_ring", "ulysses", "llama3_ring", "llama3_zigzag", "one_shot",
            "bpt")  # fmt: skip


def colour_of(name: str) -> int:
    """Which of the palette's colours a variant, or a kernel alone, has: its own, or one by the hash of its name."""
    if name == "single_device":
        return INK
    return VARIANTS.index(name) if name in VARIANTS else zlib.crc32(name.encode()) % len(PALETTE)


def palette_style() -> str:
    """The palette as CSS variables, for light and dark pages and for paper."""
    light, dark = ("".join(f"--series-{place}:{pair[way]};" for place, pair in enumerate(PALETTE)) for way in (0, 1))
    dark = f"@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}"
    return f":root{{{light}}}\n{dark}\n"


@dataclass(frozen=True)
class TableCell:
    """One table cell. detail: a second, smaller line; kind: a CSS class; hint: shown on hovering."""

    text: str
    detail: str = ""
    kind: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """rows: the first cell of each is its header."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]


def cells(*values: object) -> tuple[TableCell, ...]:
    """A row of plain cells."""
    return tuple(value if isinstance(value, TableCell) else TableCell(str(value)) for value in values)


def grid(caption: str, corner: Iterable[str], columns: Iterable[str], found: Mapping[Any, object]) -> Table:
    """A table out of its cells by (*row, column): a row for each beginning of a key, under `corner` the beginning."""
    columns = tuple(columns)
    keys = dict.fromkeys(key[:-1] for key in found)
    rows = tuple(cells(*key, *(found.get((*key, name), MISSING) for name in columns)) for key in keys)
    return Table(caption, (*corner, *columns), rows)


def render(folder: Path, template: str, **context: Any) -> bytes:
    """A template of `folder` (or of this one), filled in; `style` is given to all."""
    style = Markup((PAGE / "report.css").read_text(encoding="utf-8") + palette_style())
    return templates(folder).get_template(template).render(**context, style=style).encode("utf-8", errors="replace")


@cache
def templates(folder: Path) -> jinja2.Environment:
    """Those of `folder` and of this one, each compiled once, when it is first asked for."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, PAGE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
