"""ring-flash-attention #24's uncleared buffer, the part of experiment bpt_backward."""

from accuracy.core import plugins
from accuracy.core.paths import EXPERIMENTS

EXPECTED = {"dq": "logic", "dk": "logic", "dv": "logic"}
SCHEDULE = plugins.load(str(EXPERIMENTS / "bpt_backward" / "variant" / "bpt_stale_buffer.py")).SCHEDULE
