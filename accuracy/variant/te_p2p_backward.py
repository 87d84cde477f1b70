"""TransformerEngine's ring, backward: keys travel the other way and come home last, with 16-bit sums of dk and dv.

The ranks begin with the keys that they saw last in the forward; dq, dk and dv are added up in the inputs' dtype, one
rounding a block (context_parallel.py of 2.20.2, lines 2896-3078).
"""

from dataclasses import replace

from accuracy.core.dtype import Precision
from accuracy.variant import te_p2p

SCHEDULE = replace(
    te_p2p.SCHEDULE,
    precision=Precision(
        dq_accumulator="input", dkv_accumulator="input", gradient_wire="input", ring_direction="previous",
        ring_order="diagonal_last",
    ),
)  # fmt: skip
