"""Distributions of q, k, v and dout, one a file: `Options` and `draw(generator, shape, tensor, options)`, in float64.

Inputs read from a file may also have `unsupported(case, options)`, why there are none for a case, and `code(options)`,
a digest of what is read.
"""
