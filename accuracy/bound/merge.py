"""How far may a merge of partial attention be from float64, and which wrong merge is it?

Partial results i of the same queries over different keys, of which each row has its own lse_i, merge to

    lse = ln sum_i exp(lse_i),   out = sum_i exp(lse_i - lse) out_i

A partial without keys has lse_i = -inf; its out_i does not count, whatever it is. A sink is a partial whose out is 0.

Limits, for n partials merged one by one or at once in arithmetic of unit roundoff u (float32's, or float64's where all
is float64): an exponent lse_i - lse is off by u (|lse_i| + |lse|) at each merge, exp and log by 8 u (exp2 on a GPU has
4 u), sums by n u; so a weight is off by n u (2 max|lse| + n + 8), and out by that times the largest |out_i| of the row,
since out - w (out - out_i), as ring-flash-attn has it, rounds at that size. Where out is kept in 16 bits between
merges, n times their u is added; last comes the rounding to what is returned.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS

ROUNDED = 8  # unit roundoffs of an exp, a log, a product


@dataclass(frozen=True)
class Partials:
    """What is merged, in float64. outs: (N, ..., S, H, D); lses: (N, ..., H, S), natural, -inf of a row without keys;
    sinks: (H,), or None."""

    outs: Tensor
    lses: Tensor
    sinks: Tensor | None = None
    times_sink: int = 1

    @property
    def rows(self) -> Tensor:
        """(N, ..., H, S): lses, with those of the sinks behind them."""
        if self.sinks is None or not self.times_sink:
            return self.lses
        sink = self.sinks[:, None].expand(self.lses[:1].shape)
        return torch.cat([self.lses, *[sink] * self.times_sink])

    def merged(self) -> tuple[Tensor, Tensor]:
        """out (..., S, H, D), 0 in rows without keys, and lse (..., H, S)."""
        rows, lse = self.rows, torch.logsumexp(self.rows, 0)
        weights = torch.exp(rows - lse.masked_fill(lse == -math.inf, 0.0))[: len(self.lses)]
        return (of_tokens(weights) * self.counted).sum(0), lse

    @property
    def counted(self) -> Tensor:
        """outs, 0 where there are no keys."""
        return self.outs.masked_fill(of_tokens(self.lses) == -math.inf, 0.0)

    def limits(self, unit: float, between: float, stored_out: str, stored_lse: str) -> tuple[Tensor, Tensor]:
        """The largest errors of out and lse. unit: of the arithmetic; between: of out between merges, 0: the same;
        stored_*: dtypes of what is returned."""
        out, lse = self.merged()
        count = len(self.rows)
        size = torch.cat([self.rows, lse[None]]).nan_to_num(neginf=0.0).abs().amax(0)
        weight = count * unit * (2 * size + count + ROUNDED)
        largest = self.counted.abs().amax(0)
        of_out = (of_tokens(weight) + count * between) * largest + _rounding(out, stored_out)
        return of_out, weight + _rounding(lse.nan_to_num(neginf=0.0), stored_lse)


def of_tokens(x: Tensor) -> Tensor:
    """(..., H, S) as (..., S, H, 1)."""
    return x.transpose(-1, -2)[..., None]


def _rounding(x: Tensor, dtype: str) -> Tensor:
    """Above 0 also where x is 0, of a row without keys."""
    form = FORMATS[dtype]
    return form.unit_roundoff * x.abs() + 2.0 ** (form.min_exponent - form.precision + 1)


def wrong_merges(right: Partials) -> Iterator[tuple[str, Tensor]]:
    """Merges that are made by mistake: what happened, and the out of it."""
    outs, lses, count = right.counted, right.lses, len(right.lses)
    yield "lse is read as to the base 2", replace(right, lses=lses * math.log(2)).merged()[0]
    yield "lse to the base 2 is read as natural", replace(right, lses=lses / math.log(2)).merged()[0]
    yield "partials are added", outs.sum(0)
    yield "partials have equal weights", outs.mean(0)
    heights = torch.exp(lses - lses.amax(0).nan_to_num(neginf=0.0))
    yield "the sum is not divided by its weights", (of_tokens(heights) * outs).sum(0)
    if bool((lses == -math.inf).any()):
        yield (
            "a partial without keys has a weight of its own",
            replace(right, outs=outs, lses=lses.nan_to_num(neginf=0.0)).merged()[0],
        )
        empty = (lses == -math.inf).any(0)
        yield "a partial without keys takes the whole row", right.merged()[0] * ~of_tokens(empty)
    if right.sinks is not None:
        yield "the sink is not counted", replace(right, times_sink=0).merged()[0]
        for times in {2, count} - {1}:
            yield f"the sink is counted {times} times", replace(right, times_sink=times).merged()[0]
    for index in range(count):
        if count > 1:
            rest = torch.arange(count) != index
            yield f"partial {index} is left out", replace(right, outs=right.outs[rest], lses=lses[rest]).merged()[0]
