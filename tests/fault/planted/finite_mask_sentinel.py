"""A row without keys has a large finite lse instead of -inf: merged with it, the true lse is lost to cancellation.

flashinfer #4401.
"""

from tests.fault.planted.base import HiddenBlocks

EXPECTED = {"lse": "logic"}


SCHEDULE = HiddenBlocks(empty_lse=-1e30)
