"""dk and dv are summed over the ring's steps, and travel, in bfloat16.

The error grows like the square root of the world size, and no finer dtype of the inputs helps:

TransformerEngine #821, lucidrains' ring attention; llama3's reduce-scatter does so in the inputs' dtype.
"""

from accuracy.core.precision import Precision
from accuracy.variant.ring import Ring

EXPECTED = {"dk": "precision_floor", "dv": "precision_floor"}


SCHEDULE = Ring(precision=Precision(dkv_accumulator="bfloat16", gradient_wire="bfloat16"))
