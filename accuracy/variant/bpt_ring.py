"""Blockwise chunks inside each step of a ring: what ring-flash-attention #24 attempted, with a right backward.

Every chunk's gradient goes straight into its accumulator; no buffer is reused between hops, so none can be stale.
"""

from accuracy.variant.bpt import Blockwise, Chunks, blocks

SCHEDULE = Blockwise(blocks=blocks, options=Chunks)
