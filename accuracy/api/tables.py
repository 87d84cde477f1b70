"""`accuracy.load` and `accuracy.columns`: the table of a run, and what its columns mean."""

from pathlib import Path

import pandas as pd

from accuracy.results import glossary
from accuracy.results.run_table import read_run


def load(folder: str | Path) -> pd.DataFrame:
    """The table of a run folder (the command's output_dir) or of a published one, one row per case, tensor and rank.

    Raises ConfigError, a ValueError, in one line for a folder that is missing, damaged or of a later version.
    """
    return read_run(Path(folder)).results


def columns() -> pd.DataFrame:
    """What each column of the table is: its `unit` ("" for names; "tensor's": as the tensor itself) and its
    `meaning`, by name."""
    rows = [{"column": name, "unit": each.unit, "meaning": each.meaning} for name, each in glossary.COLUMNS.items()]
    return pd.DataFrame(rows).set_index("column")
