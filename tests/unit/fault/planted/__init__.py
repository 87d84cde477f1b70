"""Schedules that are the healthy ones with one fault each: `tests.unit.fault.planted:NAME` finds one in `PARTS`.

The tables are by what is replaced: the kernel, the blocks that a rank computes, how partials and sums are joined, and
what a direction receives or returns, and when.
"""

from tests.unit.fault.planted import blocks, joins, kernels, race, results
from tests.unit.fault.planted.base import Fault

PARTS: dict[str, Fault] = dict(
    sorted((blocks.PARTS | joins.PARTS | kernels.PARTS | race.PARTS | results.PARTS).items())
)
