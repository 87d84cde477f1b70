"""The gate's numbers, decided before any run is looked at, each with its reason.

False alarms are shared out in advance. A run has two tests (the mean over the seeds, the worst single seed) and at
most two looks, so each of the four has a quarter of FALSE_ALARMS; Holm's procedure holds the quarter over all MEASURES
of all cells, however they depend on each other: an unchanged run fails with probability at most FALSE_ALARMS, where the
measures are normal.
`accuracy experiment=gate_power` measures that, and how surely a rise of 10% is caught.
"""

import math
from typing import NamedTuple

RISE = math.log(1.10)  # what must be caught
EFFECT = math.log(1.05)  # a smaller rise is no regression, however sure: half of what must be caught (10%)
FALSE_ALARMS = 1e-3  # of a whole run of unchanged cells
LOOKS = 2
TESTS = 2
LEVEL = FALSE_ALARMS / (LOOKS * TESTS)

# A single seed is judged as if noise over seeds had the tail of Student's t of so many degrees, of excess kurtosis 2:
# three times the most that experiments/gate_power measured in a cell (0.7). Against 24 seeds normal noise is then
# hardly ever called an outlier wrongly. Where the baseline's own seeds, of all cells together, have heavier tails, the
# degrees are the next of HEAVIER that explain them (`accuracy/gate/tail.py`).
TAIL = 7
HEAVIER = (5, 4, 3, 2)

# A cell above EFFECT that LEVEL does not settle gets a second look if it would fail at this level over all cells:
# about one unchanged run in twenty is looked at twice at the most, and then by fresh seeds.
NEAR = 0.05


class Measure(NamedTuple):
    """A number of a cell that has a baseline of its own. name: of `Cell.more`, "" is y. effect: a smaller rise is no
    regression; alone: the same where seeds are too few for any test. words: what rose, for a reader."""

    name: str
    effect: float
    alone: float
    words: str = ""


# Error over single device's and over the floor: 5%. The worst rank's is the largest number of W: 10%. Of one seed both
# move with the luck of its inputs (1 cell in 40 by more than 5% in reports/inputs_that_matter): a half.
# The largest element's spreads by a tenth to a half over seeds, so half as much again, and three times where nothing
# tells the spread. Bias and gain are sizes, in errors of the baseline: independent roundings of n elements leave
# 1 / sqrt n, below 1% where n is 10^4, and a twentieth of the error is the 5% of the first.
MEASURES = (
    Measure("", EFFECT, EFFECT),
    Measure("floor", EFFECT, math.log(1.5), "error over the rounding floor "),
    Measure("rank", math.log(1.10), math.log(1.5), "error on the worst rank "),
    Measure("largest", math.log(1.5), math.log(3), "largest error "),
    Measure("bias", 0.05, math.inf, "signed mean of the error "),
    Measure("gain", 0.05, math.inf, "factor on the reference "),
)
RELATIVE = ("bias", "gain")  # sizes in errors of the baseline; all others are logarithms
ERROR_ALONE = MEASURES[:1]

DEPENDENT = 1e-3  # seeds whose order would be as good by chance so rarely are said to depend on each other
SAME_INPUTS = 0.1  # of the reference's size: other code of the reference, or of 8 bits, moves it by far less
SEEDS = 8  # of a run; fewer of a baseline that has as many must be asked for
