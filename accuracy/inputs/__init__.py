"""Distributions of q, k, v and dout, one a file: `Options` and `draw(generator, shape, tensor, options)`.

Values are drawn in float64 by numpy from a key made of names, so the same case has the same inputs on every device,
and a new case never shifts another's. Inputs that are read from a file may also have `unsupported(case, options)`, why
there are none for a case, and `code(options)`, a digest of what is read. Packed documents are no distribution but a
mask, and go with any of these: `problem.documents`.
"""
