"""The browser tests read the same made-up runs as the tests of the report."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
