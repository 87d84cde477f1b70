"""The causal mask of fewer queries than keys is aligned at the top left, where the schedule means the bottom right.

flash-attention changed its alignment in 2.1.
"""

from dataclasses import replace

from accuracy.core.masks import Block, Range, Visibility
from accuracy.variant import llama3
from tests.fault.planted.base import on_rank

EXPECTED = {"out": "logic", "lse": "logic", "dq": "logic", "dk": "logic", "dv": "logic"}


class TopLeft(Visibility):
    """Of causal blocks, the first row sees the first key only."""

    def blocks(self, query: Range, key: Range) -> list[Block]:
        """See `Visibility.blocks`."""
        return [
            replace(each, key=slice(0, each.query.stop - each.query.start)) if each.causal else each
            for each in super().blocks(query, key)
        ]


SCHEDULE = on_rank(llama3.SCHEDULE, lambda rank: replace(rank, visibility=TopLeft(rank.causal)), "forward", "backward")
