"""How does a series look? A slot picks a colour and a marker: colour never stands alone, and a variant has one colour
on every page. Dashes are for references only."""

import zlib
from collections import Counter
from collections.abc import Mapping

from markupsafe import Markup

from accuracy.chart.view import Key

PALETTE = (  # on a light and on a dark ground, each at least 3:1 against it
    ("#0072b2", "#4fa8e8"), ("#c84e00", "#f0803c"), ("#00805c", "#2cc298"), ("#b0508a", "#e29ac6"),
    ("#9a6500", "#e6a93a"), ("#007d8a", "#3fc3cf"), ("#6a4fb3", "#a895f0"), ("#6b7000", "#c0c44a"),
    ("#c2273b", "#f2707e"), ("#7a4a2b", "#c99a76"), ("#566678", "#9fb0c2"), ("#a0269e", "#dd7fdb"),
)  # fmt: skip
COLOURS = len(PALETTE)
SINGLE_DEVICE = "single_device"
VARIANTS = (
    "ring",
    "llama3",
    "zigzag",
    "striped",
    "bpt_ring",
    "ulysses",
    "llama3_ring",
    "llama3_zigzag",
    "one_shot",
    "bpt",
)
INK_SLOT = 0  # the page's ink, kept for the single-device variant, as all below it; the others' slots are above it
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


def colour(slot: int) -> int | None:
    """Which of the palette's colours; None: the page's ink."""
    return None if slot <= INK_SLOT else (slot - 1) % COLOURS


def colour_of(variant: str) -> int:
    """Which of the palette's colours a variant has: its own if it is known, one by the hash of its name if not."""
    return VARIANTS.index(variant) if variant in VARIANTS else zlib.crc32(variant.encode()) % COLOURS


def slots(lines: Mapping[str, str]) -> dict[str, int]:
    """Of each line a slot of its variant's colour; those of one variant differ in their markers. lines: label ->
    variant."""
    met: Counter[str] = Counter()
    found = {}
    for line, variant in lines.items():
        further = COLOURS * met[variant]
        found[line] = INK_SLOT - further if variant == SINGLE_DEVICE else 1 + colour_of(variant) + further
        met[variant] += 1
    return found


def on_paper(slot: int) -> str:
    """The slot's colour on a light ground."""
    place = colour(slot)
    return "black" if place is None else PALETTE[place][0]


def marker(slot: int) -> str:
    """matplotlib's marker of the slot: slots of one colour have different ones."""
    return [*_MARKS][(slot + slot // COLOURS) % len(_MARKS)]


def palette_style() -> str:
    """The palette as CSS variables, for light and dark pages and for paper."""
    light, dark = ("".join(f"--series-{place}:{pair[way]};" for place, pair in enumerate(PALETTE)) for way in (0, 1))
    names = "".join(f".c{place}{{color:var(--series-{place})}}" for place in range(COLOURS))
    dark = f"@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}"
    return f":root{{{light}}}\n{dark}\n{names}\n"


def series_key(label: str, slot: int) -> Key:
    """A legend entry with line and marker."""
    tint = "ink" if colour(slot) is None else f"c{colour(slot)}"
    shape = f'<path class="mark-shape" d="{_MARKS[marker(slot)]}"/>'
    return _key(label, f"s{slot}", tint, shape)


def _key(label: str, css: str, tint: str, shape: str) -> Key:
    opened = f'<svg class="mark {tint}" viewBox="0 0 24 14" width="24" height="14" aria-hidden="true">'
    return Key(label, css, Markup(f'{opened}<path class="mark-line" d="M0 7h24"/>{shape}</svg>'))
