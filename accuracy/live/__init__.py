"""A model's own run: capture what its attention took and returned, judge it against float64, shrink what is wrong.

`capture` writes a folder (`accuracy.core.recording` says in which form), `judge` and `reduce` read one.
"""
