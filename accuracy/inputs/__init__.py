"""Distributions of q, k, v and dout, and tensors of a model that were captured.

Inputs read from a file may also have `unsupported(case, options)`, why there are none for a case, and `code(options)`,
a digest of what is read.
"""
