"""A constant factor on one tensor, from 1% down to what the format can hardly tell."""

from typing import Any

import torch
from torch import Tensor

from accuracy.variant import ring
from accuracy.variant.base import Rank, Schedule
from accuracy.variant.join import Accumulator
from tests.fault.planted.base import Fault, changed, on_rank, returning

LEAST = {torch.bfloat16: 2**-10, torch.float16: 2**-13, torch.float32: 2**-20, torch.float64: 0.0}


def times(way: str, place: int, factor: float) -> Schedule:
    """The result at a place of what `way` returns, multiplied after its last rounding."""
    return returning(way, lambda rank, *x: (*x[:place], x[place] * factor, *x[place + 1 :]))


def dq_before_rounding(rank: Rank) -> Rank:
    """dq's sum, multiplied by 1 + 2^-10 in bfloat16, 2^-13 in float16, 2^-20 in float32, by 1 in float64."""

    def accumulator(self: Rank, name: str, like: Tensor) -> Accumulator:
        found = rank.accumulator(name, like)
        if name == "dq":
            value = found.value
            found.value = lambda: value() * (1 + LEAST[rank.dtype])  # type: ignore[method-assign]
        return found

    return changed(rank, accumulator=accumulator)


def out_before_rounding(rank: Rank) -> Rank:
    """out, likewise."""

    def running(self: Rank, q: Tensor) -> Any:
        found = rank.running(q)
        result = found.result

        def scaled(out_dtype: torch.dtype, lse_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
            out, lse = result(torch.float64, lse_dtype)
            return (out * (1 + LEAST[rank.dtype])).to(out_dtype), lse

        found.result = scaled  # type: ignore[method-assign]
        return found

    return changed(rank, running=running)


FACTOR = ("factor",)
PARTS = {
    "factor_out": Fault(times("forward", 0, 1.01), "out dq dk", causes=FACTOR),
    "factor_lse": Fault(times("forward", 1, 1.01), "lse dq dk dv", causes=FACTOR),
    "factor_dq": Fault(times("backward", 0, 1.01), "dq", causes=FACTOR),
    "factor_dk": Fault(times("backward", 1, 1.01), "dk", causes=FACTOR),
    "factor_dv": Fault(times("backward", 2, 1.01), "dv", causes=FACTOR),
    "factor_dv_256th": Fault(times("backward", 2, 1 + 2**-8), "dv", causes=FACTOR),
    "factor_dq_least": Fault(on_rank(ring.SCHEDULE, dq_before_rounding, "backward"), "dq", causes=FACTOR),
    "factor_out_least": Fault(
        on_rank(ring.SCHEDULE, out_before_rounding, "forward"), "out", causes=FACTOR, consequences="dq dk"
    ),
}
