"""The floating-point formats that the toolkit measures, by their names in torch; which tensor is kept in which, and how
exact it can be; what a schedule rounds between kernel calls, every place as a named knob; and kinds of values for the
annotations of dataclasses, which `accuracy.config.checks` checks.

A kernel's own rounding is its own option. Words for a dtype of a rounding place: `input` is the case's; `accumulate` is
float32, or float64 in a float64 case; a dtype's name means that dtype in every case, so that `float32` in a float64
case is a precision floor, on purpose.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Lt

Whole = Annotated[int, Ge(1), Lt(2**63)]
FromZero = Annotated[int, Ge(0), Lt(2**63)]
Finite = Annotated[float, Gt(-math.inf), Lt(math.inf)]
Positive = Annotated[float, Gt(0), Lt(math.inf)]
Share = Annotated[float, Gt(0), Lt(1)]


class OneOf:
    """The words that a field may hold: `Annotated[str, OneOf("causal", "full")]`."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.literal_schema(list(self.allowed))


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    precision: bits of the significand, the hidden one included; min_exponent: exponent e of the smallest normal
    number 2^e. The spacing of the format's numbers next to x is 2^(max(floor(log2|x|), min_exponent) - precision + 1).
    """

    name: str
    precision: int
    min_exponent: int
    bytes: int

    @property
    def unit_roundoff(self) -> float:
        """u = 2^-precision: the largest relative error of rounding to nearest."""
        return 2.0**-self.precision


FORMATS = {
    "bfloat16": Format("bfloat16", 8, -126, 2), "float16": Format("float16", 11, -14, 2),
    "float32": Format("float32", 24, -126, 4), "float64": Format("float64", 53, -1022, 8),
}  # fmt: skip
ARITHMETIC = {
    "tf32": Format("tf32", 11, -126, 2), "tf32_cut": Format("tf32_cut", 10, -126, 2),
    "split_16": Format("split_16", 16, -126, 4), "split_20": Format("split_20", 20, -126, 4),
    "float8_e4m3": Format("float8_e4m3", 4, -6, 2), "float8_e5m2": Format("float8_e5m2", 3, -14, 2),
    "int8": Format("int8", 5, -126, 2), "scores_e4m3": Format("scores_e4m3", 4, -6, 2),
    "scores_e5m2": Format("scores_e5m2", 3, -14, 2),
}  # fmt: skip
"""What a user's function may compute its products in, though it takes and gives a finer dtype: TF32, whose operands are
rounded, or cut off, to 10 bits behind the binary point; several products of 16-bit parts, which keep about 16 or 20
bits; values of 8 bits; q and k as whole numbers of 8 bits, which is about 5 bits of most, as a step is a 127th of the
largest; q or k in FP8."""
PRODUCTS = {
    "tf32": "float32 in TF32, as tensor cores do (operands rounded to 10 bits behind the point)",
    "tf32_cut": "float32 in TF32, as tensor cores do (operands cut off to 10 bits behind the point)",
    "split_16": "float32 with about 16 bits, as three products of bfloat16 parts do",
    "split_20": "float32 with about 20 bits, as several products of 16-bit parts do",
    "float8_e4m3": "with v in 8 bits (e4m3)",
    "float8_e5m2": "with v in 8 bits (e5m2)",
    "int8": "scores of q and k in 8 bits (INT8)",
    "scores_e4m3": "scores of q or k in 8 bits (FP8)",
    "scores_e5m2": "scores of q or k in 8 bits (FP8)",
}
"""These in words, behind `computes`."""
EIGHT_BITS = ("float8_e4m3", "float8_e5m2", "int8", "scores_e4m3", "scores_e5m2")
"""Those that a function may compute in whatever the dtype; TF32 and split products are a matter of float32 alone."""
EXACT_IN = {"int8": "whole", "scores_e4m3": "few_digits", "scores_e5m2": "few_digits"}
"""Where q or k are in 8 bits, the inputs that are exact in them, on which a function is as exact as its dtype."""
INPUT_FORMATS = {"float8_e4m3": "e4m3", "float8_e5m2": "e5m2"}
"""Dtypes of inputs alone: q, k, v and dout are rounded to 8 bits, and a `HELD` tensor holds them exactly, as it holds
all results. Their formats in `accuracy.core.quantisation`."""
HELD = "bfloat16"
DTYPES = FORMATS | dict.fromkeys(INPUT_FORMATS, FORMATS[HELD])
"""What a case may be said to have, and the format of its results."""
ALIASES = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32", "fp64": "float64",
    "double": "float64",
}  # fmt: skip
"""Other names that a user may give a dtype, and the dtype that each means."""
PROBES = {
    "zero_query": ("out", "lse"), "index_value": ("out", "lse"), "one_value": ("out",), "one_gradient": ("dq", "dk"),
    "copied": ("out",), "whole": (), "few_digits": (),
    "one_hot": (),  # each element of out, dq, dk and dv is one pair's: counted in steps/
}  # fmt: skip
"""Inputs whose exact answer is known without a computation, and the tensors that it is known of."""
REFERENCE_ERROR = 1e-14
"""Of the reference itself, relative (tests/contract/reference holds it to that against 50 digits)."""


def held(dtype: str) -> str:
    """The dtype of a case's tensors: itself, but for those of inputs alone."""
    return HELD if dtype in INPUT_FORMATS else dtype


def accumulation_dtype(dtype: str) -> str:
    """What kernels accumulate in, and store lse in, for inputs of `dtype`: float32, or float64 for float64."""
    return "float64" if dtype == "float64" else "float32"


def tensor_dtype(tensor: str, dtype: str) -> str:
    """The dtype in which a case of `dtype` stores `tensor`: lse, delta and dsink are kept in the accumulation dtype."""
    return accumulation_dtype(dtype) if tensor in ("lse", "delta", "dsink") else held(dtype)


def effective_dtype(tensor: str, dtype: str) -> str:
    """The precision that a case of `dtype` can give `tensor`: delta, computed from the stored out, has out's."""
    return tensor_dtype("out" if tensor == "delta" else tensor, dtype)


def computed_in(effective: str, dtype: str, arithmetic: str) -> str:
    """The precision that a tensor can have in a case of `dtype` where products are computed in `arithmetic`: that of
    these, where it is coarser than the dtype."""
    form = ARITHMETIC.get(arithmetic)
    if form is None or form.precision >= FORMATS[effective].precision:
        return effective
    return arithmetic if dtype == "float32" or arithmetic in EIGHT_BITS else effective


def coarser(one: str, other: str) -> str:
    """Of two dtypes the one of fewer significant bits; of an unknown one, the other."""
    return min((name for name in (one, other) if name in FORMATS), key=lambda name: FORMATS[name].precision)


def form_of(name: str) -> Format:
    """The format of a dtype, or of products."""
    return FORMATS.get(name) or ARITHMETIC[name]


def rounding_band(tensor: str, dtype: str, arithmetic: str = "") -> float:
    """The relative error (Frobenius) that rounding alone stays below in a case of `dtype`, whatever the schedule.

    16-bit formats: 8 u. Their sums are kept in float32, so an element sees a handful of roundings of u / sqrt(6) each
    (root mean square of a uniform error); healthy variants measure 0.4 to 2 u. float32 and float64: 1000 u. Their sums
    are kept in the format itself, over S terms and W merges; the smallest fault worth the name is far above (1e-10).
    arithmetic: what products are computed in, one of `ARITHMETIC`; empty: the dtype.
    """
    form = form_of(computed_in(effective_dtype(tensor, dtype), dtype, arithmetic))
    return (8 if form.bytes == 2 else 1000) * form.unit_roundoff


Dtype = Annotated[str, OneOf("input", "accumulate", *FORMATS)]
Wire = Annotated[str, OneOf("input", "accumulate", *FORMATS, *INPUT_FORMATS)]
Merge = Annotated[str, OneOf("sigmoid", "logsumexp", "double", "compensated", "rescaled", "rescaled_twice")]


@dataclass(frozen=True)
class Precision:
    """The precision policy of a schedule. The defaults are ring-flash-attention's, at its commit of 2025.

    partial: dtype of each block's out, as the kernel returns it.
    gradient_partial: dtype of each block's dq, dk, dv, as the kernel returns them.
    out_accumulator, lse: dtypes of the running out and lse between merges.
    merge: formula that joins two partials (see `accuracy.variant.join`).
    dq_accumulator, dkv_accumulator: dtypes of the sums over blocks and ranks.
    wire: dtype in which k and v (and q, out of head exchanges) travel between ranks; of rings also float8_e4m3 and
    float8_e5m2, with a float32 scale for each head of a sequence; of decode and its like, in which they are cached.
    gradient_wire: dtype in which dk and dv (and dq, dout of head exchanges) travel; 8 bits as of `wire`, at each hop.
    ring_direction: keys and values travel to the `next` rank or to the `previous` one.
    ring_order: the rank's own block is computed first, as it is at hand, or last.
    """

    partial: Dtype = "input"
    gradient_partial: Dtype = "input"
    out_accumulator: Dtype = "accumulate"
    lse: Dtype = "accumulate"
    merge: Merge = "sigmoid"
    dq_accumulator: Dtype = "accumulate"
    dkv_accumulator: Dtype = "accumulate"
    wire: Wire = "input"
    gradient_wire: Wire = "accumulate"
    ring_direction: Annotated[str, OneOf("next", "previous")] = "next"
    ring_order: Annotated[str, OneOf("diagonal_first", "diagonal_last")] = "diagonal_first"

    def dtype(self, place: str, case_dtype: str) -> str:
        """The dtype's name that `place` has in a case of `case_dtype`."""
        word = getattr(self, place)
        return {"input": case_dtype, "accumulate": accumulation_dtype(case_dtype)}.get(word, word)

    @property
    def low_wires(self) -> bool:
        """Return whether a schedule sends anything in 8 bits."""
        return not INPUT_FORMATS.keys().isdisjoint((self.wire, self.gradient_wire))
