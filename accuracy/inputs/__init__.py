"""Distributions of q, k, v and dout, one a file: `Options` and `draw(generator, shape, tensor, options)`.

Values are drawn in float64 by numpy from a key made of names, so the same case has the same inputs on every device,
and a new case never shifts another's.
"""
