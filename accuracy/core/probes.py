"""What is known exactly: inputs whose answer is known without a computation, and the error of the reference."""

PROBES = {  # inputs whose exact answer is known, and the tensors that it is known of
    "zero_query": ("out", "lse"),
    "index_value": ("out", "lse"),
    "one_value": ("out",),
    "one_gradient": ("dq", "dk"),
    "one_hot": (),  # each element of out, dq, dk and dv is one pair's: counted in steps/
}
REFERENCE_ERROR = 1e-14  # of the reference itself, relative (tests/reference holds it to that against 50 digits)
