"""dk and dv are summed over the ring's steps, and travel, in bfloat16.

The error grows like the square root of the world size, and no finer dtype of the inputs helps:

TransformerEngine #821, lucidrains' ring attention; llama3's reduce-scatter does so in the inputs' dtype.
"""

from accuracy.core.precision import Precision
from accuracy.variant.ring import BACKWARD_PLACES, FORWARD_PLACES, SHARDINGS, backward, forward, unsupported

__all__ = [
    "BACKWARD_PLACES",
    "EXPECTED",
    "FORWARD_PLACES",
    "PRECISION",
    "SHARDING",
    "SHARDINGS",
    "backward",
    "forward",
    "unsupported",
]

SHARDING = "contiguous"
EXPECTED = {"dk": "precision_floor", "dv": "precision_floor"}
PRECISION = Precision(dkv_accumulator="bfloat16", gradient_wire="bfloat16")
