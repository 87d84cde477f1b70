"""The floating-point formats that the toolkit measures, by their names in torch, and which tensor is kept in which."""

from dataclasses import dataclass


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


INPUT_FORMATS = {"float8_e4m3": "e4m3", "float8_e5m2": "e5m2"}
"""Dtypes of inputs alone: q, k, v and dout are rounded to 8 bits, and a `HELD` tensor holds them exactly, as it holds
all results. Their formats in `accuracy.core.quantisation`."""
HELD = "bfloat16"
DTYPES = FORMATS | dict.fromkeys(INPUT_FORMATS, FORMATS[HELD])
"""What a case may be said to have, and the format of its results."""


def held(dtype: str) -> str:
    """The dtype of a case's tensors: itself, but for those of inputs alone."""
    return HELD if dtype in INPUT_FORMATS else dtype


def accumulation_dtype(dtype: str) -> str:
    """What kernels accumulate in, and store lse in, for inputs of `dtype`: float32, or float64 for float64."""
    return "float64" if dtype == "float64" else "float32"


def effective_dtype(tensor: str, dtype: str) -> str:
    """The precision that a case of `dtype` can give `tensor`: delta, computed from the stored out, has out's."""
    return held(dtype) if tensor == "delta" else tensor_dtype(tensor, dtype)


def coarser(one: str, other: str) -> str:
    """Of two dtypes the one of fewer significant bits; of an unknown one, the other."""
    known = [name for name in (one, other) if name in FORMATS]
    return min(known, key=lambda name: FORMATS[name].precision)


def rounding_band(tensor: str, dtype: str) -> float:
    """The relative error (Frobenius) that rounding alone stays below in a case of `dtype`, whatever the schedule.

    16-bit formats: 8 u. Their sums are kept in float32, so an element sees a handful of roundings of u / sqrt(6) each
    (root mean square of a uniform error); healthy variants measure 0.4 to 2 u. float32 and float64: 1000 u. Their sums
    are kept in the format itself, over S terms and W merges; the smallest fault worth the name is far above (1e-10).
    """
    form = FORMATS[effective_dtype(tensor, dtype)]
    return (8 if form.bytes == 2 else 1000) * form.unit_roundoff


def tensor_dtype(tensor: str, dtype: str) -> str:
    """The dtype in which a case of `dtype` stores `tensor`: lse, delta and dsink are kept in the accumulation dtype."""
    return accumulation_dtype(dtype) if tensor in ("lse", "delta", "dsink") else held(dtype)
