import numpy as np
import pandas as pd

from accuracy.cli import job
from accuracy.results.derived import with_derived

ROWS = {  # a problem of one token, on which float64 is exact on a single device, and a longer one
    "variant": "ring", "dtype": "float64", "world_size": 2, "rank": -1, "tensor": "out", "inputs": "gaussian",
    "error_rel": [3e-15, 2e-16], "single_device_rel": [1e-16, 0.0], "floor_rel": 0.0, "x_single_device": np.nan,
}  # fmt: skip


def test_where_single_device_has_no_error_the_table_has_a_number_all_the_same() -> None:
    rows = with_derived(pd.DataFrame(ROWS))
    assert np.isinf(rows["x_single_device"]).any()
    said = job._ratios(rows)
    assert "inf" not in said
    assert "30" in said
    assert "where that is 0: over the rounding floor, or the reference's own error" in said
    assert "inf" in job._ratios(rows.assign(error_rel=np.inf, x_single_device=np.inf))
