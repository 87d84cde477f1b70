"""TransformerEngine's ring (`AttnFuncWithCPAndKVP2P` over flash-attn, bshd), forward: its blocks, order and roundings.

Blocks as `zigzag`'s. out stays in the inputs' dtype from hop to hop: rescaled, a block added, rounded, for every block
(context_parallel.py of 2.20.2, lines 180-212 and 2149-2222). The two steps are compiled into one, which rounds once;
as written (NVTE_TORCH_COMPILE=0) they round twice: merge=rescaled_twice.
"""

from accuracy.core.dtype import Precision
from accuracy.variant import zigzag
from accuracy.variant.ring import Ring

SCHEDULE = Ring(
    blocks=zigzag.blocks,
    shardings=("zigzag",),
    features=("softcap",),
    precision=Precision(out_accumulator="input", merge="rescaled"),
)
