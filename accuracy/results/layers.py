"""The table of stacks: a row per (case, layer, tensor), in a run folder's `layers/`, one file a case, and
published in `results.parquet` like every other. No torch here.
"""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from accuracy.core import fields
from accuracy.results.derived import with_derived
from accuracy.results.table import IDENTITY, RESULTS_SCHEMA, SCHEMA_VERSION, Finished, Row, finished_in, write_rows

FOLDER = "layers"
PUBLISHED = "results.parquet"
TENSORS = ("x", "dx", "d_query", "d_key", "d_value", "d_output", "loss", "gradient_norm")

_LEFT_OUT = (  # of the columns that say what a row is of: what a stack does not have or that is one number in it
    "sharding", "softcap", "seqlen_q", "softmax_scale", "inputs", "inputs_options", "reference", "rank",
)  # fmt: skip
_STACK = [
    *((each.name, pa.type_for_alias(each.type)) for each in fields.STACK_FIELDS),
    ("layer", pa.int32()),  # 1 to L; the loss and the norm of all gradients have L
]
METRICS = (
    "error_rel",  # norm of (stack - reference) / norm of reference; the reference is the whole stack in float64
    "single_device_rel",  # that of the stack with the single-device kernel
    "exact_rel",  # that of the stack with exact attention: what is rounded outside of attention
    "x_single_device",
    "x_exact",
    "diff_rel",  # norm of (stack - single device's) / norm of single device's: what others print
    "exact_diff_rel",  # that of the stack with exact attention: two stacks that are both right differ by so much
    "cosine",  # of the angle between stack and reference; 1: same direction
    "value",  # the norm, and of loss and gradient_norm the number itself
    "reference_value",
)
SCHEMA = pa.schema(
    [
        *(RESULTS_SCHEMA.field(name) for name in IDENTITY if name not in _LEFT_OUT),
        *_STACK,
        *((name, pa.float64()) for name in METRICS),
        ("nonfinite", pa.int64()),
        ("seconds", pa.float64()),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)
PUBLISHED_SCHEMA = SCHEMA.append(pa.field("rank", pa.int32()))  # -1, as where all ranks are one row


def write(folder: Path, case_id: str, rows: list[Row]) -> None:
    """Store a finished case for good."""
    write_rows(folder / FOLDER / f"{case_id}.parquet", rows, SCHEMA)


def finished(folder: Path, case_id: str) -> Finished | None:
    """How a case ended that needs no second run; None where it does."""
    return finished_in(folder / FOLDER / f"{case_id}.parquet")


def has(folder: Path) -> bool:
    """Whether a folder is that of a run of stacks."""
    published = folder / PUBLISHED
    try:
        return (folder / FOLDER).exists() or (published.exists() and "layer" in pq.read_schema(published).names)
    except (OSError, pa.ArrowException):  # no parquet file: whoever reads it says so
        return False


def read(folder: Path) -> pd.DataFrame:
    """Every row of a run folder (`layers/`) or of a published one (`results.parquet`)."""
    for path in (folder / FOLDER, folder / PUBLISHED):
        if path.exists():
            return with_derived(ds.dataset(path, format="parquet", schema=SCHEMA).to_table().to_pandas())
    return SCHEMA.empty_table().to_pandas()
