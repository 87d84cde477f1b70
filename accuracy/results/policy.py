"""The gate's numbers, decided before any run is looked at, each with its reason.

False alarms are shared out in advance. A run has two tests (the mean over the seeds, the worst single seed) and at
most two looks, so each of the four has a quarter of FALSE_ALARMS; Holm's procedure holds the quarter over all cells,
however they depend on each other: an unchanged run fails with probability at most FALSE_ALARMS, where y is normal.
`accuracy experiment=gate_power` measures that, and how surely a rise of 10% is caught.
"""

import math

RISE = math.log(1.10)  # what must be caught
EFFECT = math.log(1.05)  # a smaller rise is no regression, however sure: half of what must be caught (10%)
FALSE_ALARMS = 1e-3  # of a whole run of unchanged cells
LOOKS = 2
TESTS = 2
LEVEL = FALSE_ALARMS / (LOOKS * TESTS)

# A single seed is judged as if noise over seeds had the tail of Student's t of so many degrees, of excess kurtosis 2:
# three times the most that experiments/gate_power measured in a cell (0.7). Against 24 seeds normal noise is then
# hardly ever called an outlier wrongly, and noise of t of 5 degrees in one unchanged run of 200, not in half of them.
TAIL = 7

# A cell above EFFECT that LEVEL does not settle gets a second look if it would fail at this level over all cells:
# about one unchanged run in twenty is looked at twice at the most, and then by fresh seeds.
NEAR = 0.05
