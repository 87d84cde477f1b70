"""LoongTrain's double ring: keys and values circle inside windows of ranks, and then go on from window to window.

Gu et al. 2024 (arXiv 2406.18485, section 4.4), step for step as InternEvo's
`zigzag_ring_flash_attn_with_sliding_window.py` runs it, in zigzag shards. Its backward returns each window's sums in
the inputs' dtype: from the second window on dq, dk and dv are added, and travel, in 16 bits. The last hop inside a
window and the hop to the next window are one hop here: nothing is added between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from accuracy.core.case import Case
from accuracy.core.dtype import OneOf, Whole
from accuracy.variant import zigzag
from accuracy.variant.base import Rank
from accuracy.variant.join import Accumulator
from accuracy.variant.ring import Ring, distance


@dataclass(frozen=True)
class Options:
    """window_ranks: ranks of a window, consecutive ones; it divides the world size. window_sums: what dq, dk and dv are
    kept in after the first window, `input` as published or `accumulate`."""

    window_ranks: Whole = 2
    window_sums: Annotated[str, OneOf("input", "accumulate")] = "input"


class DoubleRing(Ring):
    """A ring whose keys take the way round a window before they go to the next."""

    def unsupported(self, case: Case) -> str | None:
        """Whole windows."""
        window = int(dict(case.variant.options).get("window_ranks") or 1)
        if case.world_size > 1 and case.world_size % window:
            ranks = f"window_ranks={window} ranks, which must divide world_size={case.world_size}"
            return f"double_ring has windows of {ranks}"
        return super().unsupported(case)

    def source(self, rank: Rank, step: int) -> int:
        """See `Ring.source`."""
        outer, inner = divmod(step, _window(rank))
        return _moved(rank, -outer, -inner)

    def hop(self, rank: Rank, step: int) -> tuple[int, int]:
        """See `Ring.hop`: inside the window; at its end one on in the window and one window on."""
        leaves = (step + 1) % _window(rank) == 0
        return _moved(rank, leaves, 1), _moved(rank, -leaves, -1)

    def end_step(self, rank: Rank, step: int, sums: Sequence[Accumulator]) -> None:
        """At the end of a window the sums are rounded."""
        if rank.options.window_sums == "input" and (step + 1) % _window(rank) == 0:
            for total in sums:
                total.round_to(rank.dtype)


def _window(rank: Rank) -> int:
    """A single rank is a window."""
    return 1 if rank.world.size == 1 else int(rank.options.window_ranks)


def _moved(rank: Rank, windows: int, places: int) -> int:
    """The rank so many windows and, inside a window, so many places onward."""
    size, window = rank.world.size, _window(rank)
    outer, inner = divmod(rank.world.rank, window)
    outer, inner = outer + windows * distance(rank), inner + places * distance(rank)
    return outer % (size // window) * window + inner % window


SCHEDULE = DoubleRing(blocks=zigzag.blocks, shardings=("zigzag",), options=Options)
