"""Who sees whom: blocks of queries and keys that a kernel can compute, and how a rectangle falls into them.

Blocks are full or causal, perhaps in a window, both aligned at the bottom right (the last query sees the last key), as
flash-attention since 2.1. No block has a row without a key. Positions, of queries too, are those of the keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

Range = tuple[int, int]  # positions [begin, end)
Window = tuple[int | None, int | None]  # keys to the left and to the right of the bottom-right diagonal; None: no limit


@dataclass(frozen=True)
class Block:
    """Query rows and key columns that meet in one kernel call.

    window: of a block of R rows and K >= R keys, row i sees keys i + K - R - left to i + K - R + right, as
    flash-attention's `window_size`; None: no window, and `causal` decides.
    """

    query: slice
    key: slice
    causal: bool
    window: Window | None = None

    def __hash__(self) -> int:  # slices have none before Python 3.12
        return hash((self.query.start, self.query.stop, self.key.start, self.key.stop, self.causal, self.window))

    def shifted(self, rows: int, keys: int) -> "Block":
        """The same block counted from other first positions."""
        query, key = (slice(x.start - by, x.stop - by) for x, by in ((self.query, rows), (self.key, keys)))
        return replace(self, query=query, key=key)


@dataclass(frozen=True)
class Visibility:
    """Which keys a query at position p sees: those of its document, up to p if causal, none further than `window`.

    documents: the borders between packed documents, 0 and S included; empty: one document.
    """

    causal: bool
    window: int | None = None
    documents: tuple[int, ...] = ()

    @property
    def plain(self) -> bool:
        """Neither windows nor documents."""
        return self.window is None and not self.documents

    def blocks(self, query: Range, key: Range) -> list[Block]:
        """The blocks in which queries at [a, b) see keys [c, d); nothing is seen twice."""
        documents = pairwise(self.documents or (min(query[0], key[0]), max(query[1], key[1])))
        rectangles = ((_common(query, document), _common(key, document)) for document in documents)
        return [block for rectangle in rectangles for block in self._in_document(*rectangle)]

    def interval(self, place: int, keys: int) -> Range:
        """The keys, of `keys`, that the query at position `place` sees."""
        begin, end = 0, min(keys, place + 1) if self.causal else keys
        if self.window is not None:
            begin, end = max(begin, place - self.window), min(end, place + self.window + 1)
        for document in pairwise(self.documents):
            if document[0] <= place < document[1]:
                begin, end = _common((begin, end), document)
        return begin, end

    def _in_document(self, query: Range, key: Range) -> list[Block]:
        if query[0] >= query[1] or key[0] >= key[1]:
            return []
        if self.window is None:
            return visible_blocks(query, key, self.causal)
        return _window_blocks(query, key, self.window, 0 if self.causal else self.window)


def borders(lengths: Sequence[int]) -> tuple[int, ...]:
    """Where documents of these lengths begin and end, 0 and S included; none for no documents."""
    return tuple(accumulate(lengths, initial=0)) if lengths else ()


def keys_seen(mask: str, query: int, queries: int, keys: int) -> int:
    """How many keys a query sees under a mask as tables write it, `causal,window=128` or `full,documents=1+9`."""
    word, *settings = mask.split(",")
    given = dict(setting.split("=") for setting in settings)
    window = int(given["window"]) if "window" in given else None
    lengths = [int(length) for length in given["documents"].split("+")] if "documents" in given else []
    seen = Visibility(word != "full", window, borders(lengths))
    begin, end = seen.interval(query + (0 if word == "causal_top_left" else keys - queries), keys)
    return end - begin


def visible_blocks(query: Range, key: Range, causal: bool) -> list[Block]:
    """The blocks in which queries at [a, b) see keys [c, d) without a window; nothing is seen twice.

    Rows above the first key see none of them and are left out, as are keys behind the last row. What remains is a
    causal block, and below it, where rows come after the last key, a full one.
    """
    (first_row, end_row), (first_key, end_key) = query, key
    if not causal or first_row >= end_key - 1:
        return [Block(slice(*query), slice(*key), causal=False)]
    first_row, end_key = max(first_row, first_key), min(end_key, end_row)
    if first_row >= end_row:
        return []
    blocks = [Block(slice(first_row, end_key), slice(first_key, end_key), causal=True)]
    if end_key < end_row:
        blocks.append(Block(slice(end_key, end_row), slice(first_key, end_key), causal=False))
    return blocks


def whole_blocks(visibility: Visibility, query_offset: int, queries: int, keys: int) -> list[Block]:
    """All queries and keys, queries counted from 0; query_offset: the position of the first query."""
    blocks = visibility.blocks((query_offset, query_offset + queries), (0, keys))
    return [block.shifted(query_offset, 0) for block in blocks]


def banded_blocks(query: Range, key: Range, before: int | None, after: int | None) -> list[Block]:
    """The blocks in which queries i of [a, b) see keys i - before to i + after of [c, d); either side may be below 0.
    before None: no limit; after None: no limit to either side."""
    if query[0] >= query[1] or key[0] >= key[1]:
        return []
    if after is None:
        return [Block(slice(*query), slice(*key), causal=False)]
    moved = -before if before is not None and before < 0 else min(after, 0)
    rows = query[0] + moved, query[1] + moved
    if before is None:
        return [block.shifted(moved, 0) for block in visible_blocks(rows, key, causal=True)]
    if before + after < 0:
        return []
    return [block.shifted(moved, 0) for block in _window_blocks(rows, key, before + moved, after - moved)]


def _window_blocks(query: Range, key: Range, before: int, after: int) -> list[Block]:
    """The blocks in which queries at p see keys p - before to p + after, without rows and keys that see nothing.

    Without those, the bottom-right diagonal lies so that neither side of the kernel's window is below 0. Rows beyond as
    many as there are keys are a block of their own: flash-attention takes a right side of as many for no limit.
    """
    first_key, end_key = max(key[0], query[0] - before), min(key[1], query[1] + after)
    first_row, end_row = max(query[0], first_key - after), min(query[1], end_key + before)
    if first_row >= end_row or first_key >= end_key:
        return []
    left = before + end_key - end_row if end_row - 1 - before > first_key else None
    right = after + end_row - end_key if first_row + after < end_key - 1 else None
    rows, keys = slice(first_row, end_row), slice(first_key, end_key)
    if left is None and right in (None, 0):
        return [Block(rows, keys, causal=right == 0)]
    if end_row - first_row > end_key - first_key:
        cut = first_row + end_key - first_key
        halves = (first_row, cut), (cut, end_row)
        return [block for half in halves for block in _window_blocks(half, (first_key, end_key), before, after)]
    return [Block(rows, keys, causal=False, window=(left, right))]


def _common(one: Range, other: Range) -> Range:
    return max(one[0], other[0]), min(one[1], other[1])
