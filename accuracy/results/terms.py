"""What do the words of a first screen mean? A line for a reader who meets them there; the Method has all of them."""

import re

TERMS = {  # by the pattern that uses it
    r"[Ee]rror": "error: distance from float64 attention on the same rounded inputs, relative to it",
    r"[Ss]ingle[- ]device": "single device: the same kernel run once on the whole sequence",
    r"rounding floor|least possible": "rounding floor, the least possible error: the exact result, merely rounded",
    r"\blse\b": "lse: log of the softmax's sum, kept in float32",
    r"\bdelta\b": "delta: row sums of dout times out, kept in float32",
    r"\bW\b": "W: number of ranks",
}


def defined(*texts: str) -> str:
    """The definitions of the words that the texts use; empty where they use none."""
    said = " ".join(texts)
    return " · ".join(meaning for pattern, meaning in TERMS.items() if re.search(pattern, said))
