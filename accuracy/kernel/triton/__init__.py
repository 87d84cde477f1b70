"""Flash attention in Triton: forward with a state that can be carried on, and the backward in two forms; a merge and a
sum of blocks in one pass over memory each.

Only `available.py` may be imported where there is no triton.
"""
