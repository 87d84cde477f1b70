"""How does a series look? A slot picks a colour and a marker: colour never stands alone, and a variant has one colour
on every page. Dashes are for references only."""

import zlib

PALETTE = (  # on a light and on a dark ground, each at least 3:1 against it
    ("#0072b2", "#4fa8e8"), ("#c84e00", "#f0803c"), ("#00805c", "#2cc298"), ("#b0508a", "#e29ac6"),
    ("#9a6500", "#e6a93a"), ("#007d8a", "#3fc3cf"), ("#6a4fb3", "#a895f0"), ("#6b7000", "#c0c44a"),
    ("#c2273b", "#f2707e"), ("#7a4a2b", "#c99a76"), ("#566678", "#9fb0c2"), ("#a0269e", "#dd7fdb"),
)  # fmt: skip
COLOURS = len(PALETTE)
SINGLE_DEVICE = "single_device"
VARIANTS = ("ring", "llama3", "zigzag", "striped", "bpt_ring", "ulysses", "llama3_ring", "llama3_zigzag", "one_shot",
            "bpt")  # fmt: skip
INK_SLOT = 0  # the page's ink, kept for the single-device variant, as all below it; the others' slots are above it
_MARKERS = "os^DvPX<"  # of matplotlib


def colour(slot: int) -> int | None:
    """Which of the palette's colours; None: the page's ink."""
    return None if slot <= INK_SLOT else (slot - 1) % COLOURS


def colour_of(variant: str) -> int:
    """Which of the palette's colours a variant has: its own if it is known, one by the hash of its name if not."""
    return VARIANTS.index(variant) if variant in VARIANTS else zlib.crc32(variant.encode()) % COLOURS


def marker(slot: int) -> str:
    """matplotlib's marker of the slot: slots of one colour have different ones."""
    return _MARKERS[(slot + slot // COLOURS) % len(_MARKERS)]


def palette_style() -> str:
    """The palette as CSS variables, for light and dark pages and for paper."""
    light, dark = ("".join(f"--series-{place}:{pair[way]};" for place, pair in enumerate(PALETTE)) for way in (0, 1))
    dark = f"@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}"
    return f":root{{{light}}}\n{dark}\n"
