"""A rank's first partial sees no key (lse = -inf) and is merged by sigmoid and logsigmoid: -inf - (-inf) is NaN.

Several projects with the merge of ring-flash-attention #34 that do not skip hidden blocks.
"""

from tests.fault.planted.base import HiddenBlocks

EXPECTED = {"lse": "invalid"}


SCHEDULE = HiddenBlocks()
