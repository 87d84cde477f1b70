"""Which few of many elements are needed? Delta debugging (ddmin: Zeller and Hildebrandt 2002, IEEE TSE 28)."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

T = TypeVar("T")


def smallest(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A part of `items`, in their order, that fails and of which no element can be left out (1-minimal). items: fails
    as a whole. Halves, quarters, ... are tried alone, then left out."""
    kept, parts = list(items), 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[first : first + size] for first in range(0, len(kept), size)]
        without = [[*chain(*chunks[:place], *chunks[place + 1 :])] for place in range(len(chunks))]
        alone = next((chunk for chunk in chunks if fails(chunk)), None)
        if alone is not None:
            kept, parts = alone, 2
        elif (rest := next((rest for rest in without if len(chunks) > 2 and fails(rest)), None)) is not None:
            kept, parts = rest, max(2, len(chunks) - 1)
        elif size == 1:
            break
        else:
            parts = min(len(kept), 2 * parts)
    return kept
