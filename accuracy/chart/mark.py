"""How does a series look? A slot picks a colour (Okabe & Ito 2008), a marker and a dash: colour never stands alone."""

from markupsafe import Markup

from accuracy.chart.view import Key

COLOURS = 7  # --series-0 .. --series-6 in report.css
INK_SLOT = 0  # the page's ink, kept for the single-device variant; slots count up from it
_MARKS = {  # matplotlib's name of a marker, and its shape in a legend
    "o": "M12 3.5a3.5 3.5 0 1 1 0 7a3.5 3.5 0 1 1 0-7z",
    "s": "M8.8 3.8h6.4v6.4h-6.4z",
    "^": "M12 3l4 7.4h-8z",
    "D": "M12 2.4l4.4 4.6l-4.4 4.6l-4.4-4.6z",
    "v": "M12 11l4-7.4h-8z",
    "P": "M10.7 3h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "X": "M8.6 5.2l1.7-1.7l1.7 1.7l1.7-1.7l1.7 1.7l-1.8 1.8l1.8 1.8l-1.7 1.7l-1.7-1.7l-1.7 1.7l-1.7-1.7l1.8-1.8z",
    "<": "M8 7l7.4-4v8z",
}
REFERENCES = {"single-device kernel": ("single-device", "6 3"), "floor": ("floor", "1.5 2.5")}


def colour(slot: int) -> int | None:
    """Which of the palette's colours; None: the page's ink."""
    return None if slot == INK_SLOT else (slot - 1) % COLOURS


def marker(slot: int) -> str:
    """matplotlib's marker of the slot."""
    return [*_MARKS][slot % len(_MARKS)]


def dash(slot: int) -> tuple[int, tuple[float, ...]]:
    """matplotlib's line style: solid for the first round of colours, dashed for later rounds."""
    return (0, ()) if slot <= COLOURS else (0, (5, 1.6))


def series_key(label: str, slot: int) -> Key:
    """A legend entry with line and marker."""
    tint = "ink" if slot == INK_SLOT else f"c{colour(slot)}"
    shape = f'<path class="mark-shape" d="{_MARKS[marker(slot)]}"/>'
    return _key(label, f"s{slot}", tint, "" if slot <= COLOURS else "5 2", shape)


def reference_key(name: str, label: str = "") -> Key:
    """A legend entry of a reference line, under another label if given."""
    css, dashes = REFERENCES[name]
    return _key(label or name, css, css, dashes)


def _key(label: str, css: str, tint: str, dashes: str, shape: str = "") -> Key:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    opened = f'<svg class="mark {tint}" viewBox="0 0 24 14" width="24" height="14" aria-hidden="true">'
    return Key(label, css, Markup(f'{opened}<path class="mark-line" d="M0 7h24"{dashed}/>{shape}</svg>'))
