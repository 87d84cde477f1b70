"""What `hypotheses/` means: when a hypothesis explains a tensor, and when two are one."""

FOLLOWS = "gradients of the returned out and lse"
"""The hypothesis that a gradient is right for the wrong out and lse that it is made of."""
EXPLAINS = 1.5
"""A hypothesis explains a tensor that it leaves at most so many times the expected rounding of."""
RULED_OUT = 10.0
"""A hypothesis is ruled out where it leaves at least so many times the expected rounding."""
SAME = 3.0
"""Predictions that are no further apart, in times the expected rounding, are one."""
