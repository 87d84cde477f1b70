"""Attention in 8 and 4 bits: its emulation by a policy of `accuracy.core.quantisation`, and kernels of others."""
