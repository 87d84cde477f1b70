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

# A cell above EFFECT that LEVEL does not settle gets a second look if it would fail at this level over all cells:
# about one unchanged run in twenty is looked at twice at the most, and then by fresh seeds.
NEAR = 0.05
