"""Flash attention in Triton, a merge and a sum. Only `available.py` may be imported where there is no triton."""
