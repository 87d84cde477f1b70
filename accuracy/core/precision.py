"""What a schedule rounds between kernel calls: every place, as a named knob. A kernel's own rounding is its own option.

Words for a dtype: `input` is the case's; `accumulate` is float32, or float64 in a float64 case; a dtype's name means
that dtype in every case, so that `float32` in a float64 case is a precision floor, on purpose.
"""

from dataclasses import dataclass
from typing import Annotated

from accuracy.core.dtype import FORMATS, INPUT_FORMATS, OneOf, accumulation_dtype

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
        """Whether anything travels in 8 bits."""
        return not INPUT_FORMATS.keys().isdisjoint((self.wire, self.gradient_wire))
