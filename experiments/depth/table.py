"""The table of stacks: one row per (stack, layer, tensor)."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from accuracy.results import derived, table
from docs.publish import rounded

STACK = {
    "layers": "int32", "width": "int32", "feed_forward": "int32", "vocabulary": "int32",
    "weights": "string", "gain": "float64", "residual": "string", "norm": "bool",
}  # fmt: skip
"""Columns of the stack around the attention: see `experiments.depth.plan.Stack`."""
METRICS = ("error_rel", "diff_rel", "single_device_rel", "x_single_device", "exact_rel", "x_exact", "exact_diff_rel",
           "value", "reference_value", "seconds")  # fmt: skip
"""exact_rel, exact_diff_rel: error_rel and diff_rel of the stack with exact attention; x_exact: error_rel over
exact_rel; value: norm of the tensor, of the loss the loss; reference_value: of the float64 reference. The others are as
for attention alone."""
WHOLE = dict.fromkeys(("layer", *(name for name, kind in STACK.items() if kind == "int32")), "Int64")


def _schema(**columns: str) -> pa.Schema:
    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


SCHEMA = pa.unify_schemas([
    pa.schema([table.RESULTS_SCHEMA.field(name) for name in table.IDENTITY]),
    _schema(**STACK, layer="int32", **dict.fromkeys(METRICS, "float64"), nonfinite="int64"),
])  # fmt: skip
FILE = "stacks.parquet"
SIGNIFICANT_BITS = 16  # of published numbers: a relative error of at most 2^-16


def read(folder: Path) -> pd.DataFrame:
    """All rows of a run's folder or of a published one, with the ratios that a lean table leaves out."""
    rows = table.read_published(folder / FILE, SCHEMA).to_pandas().astype(WHOLE)
    exact = derived.ratio(rows["error_rel"].to_numpy(), rows["exact_rel"].to_numpy(), zero_by_zero=1.0)
    rows = derived.with_derived(rows).assign(x_exact=rows["x_exact"].fillna(pd.Series(exact, rows.index)))
    return rows.sort_values(["case_id", "tensor", "rank"], kind="stable", ignore_index=True)


def lean(rows: pa.Table) -> pa.Table:
    """Return the rows with numbers of 16 significant bits, without the ratios that `read` gives back."""
    rows = rows.drop_columns(["x_single_device", "x_exact"])
    for name in {*METRICS} & {*rows.column_names}:
        numbers = rounded(rows[name].to_numpy(), SIGNIFICANT_BITS)
        rows = rows.set_column(rows.column_names.index(name), rows.field(name), pa.array(numbers, from_pandas=True))
    return rows


def of_cases(folder: Path, cases: Sequence[str], schema: pa.Schema) -> pa.Table:
    """The rows of some cases, a file each, as far as there are files."""
    files = [folder / f"{case}.parquet" for case in cases]
    return table.read_cases([path for path in files if path.exists()], schema)


def bottom_gradients(rows: pd.DataFrame) -> str:
    """Of every variant and setting, the gradient below all layers of the deepest stack on the most ranks."""
    bottom = rows[(rows["status"] == table.OK) & (rows["tensor"] == "dx") & (rows["layer"] == 1)]
    if bottom.empty:
        return "no stack was measured"
    keys = ["dtype", "weights", "gain", "residual", "norm", "variant", "precision"]
    deepest = bottom[bottom["layers"] == bottom.groupby(keys)["layers"].transform("max")]
    numbers = ["error_rel", "x_single_device", "x_exact", "diff_rel"]
    median = deepest.astype({"layers": int}).groupby([*keys, "layers", "world_size"])[numbers].median().reset_index()
    shown = median.groupby(keys).tail(1).to_string(index=False, float_format="{:.3g}".format)
    return f"dx of layer 1, deepest stack (relative Frobenius, median over seeds)\n{shown}"
