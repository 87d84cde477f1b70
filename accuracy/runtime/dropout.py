"""Which weights does dropout keep? A mask of the problem: the same for the reference, one device and every rank.

A weight of the softmax becomes 0 or is kept, and kept ones are multiplied by 1 / (1 - rate). Whether it is kept
depends on the seed, the item of the batch, the query head and the global positions of query and key alone: SplitMix64
(Steele, Lea and Flood, OOPSLA 2014) at the place `query * 2**32 + key` of a stream of its own for each
item and head. Integers only, so that every device and every block has the same bits.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

GOLDEN, FIRST, SECOND = (x - 2**64 for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
BITS = 24  # of the number that is compared with the rate


@dataclass(frozen=True, eq=False)
class Dropout:
    """The mask, between the queries and keys at hand: int64 tokens (Sq,), (Sk,), of query heads from first_head on."""

    rate: float
    seed: int
    queries: Tensor | None = None
    keys: Tensor | None = None
    first_head: int = 0

    def at(self, queries: Tensor, keys: Tensor) -> "Dropout":
        """Between these tokens."""
        return replace(self, queries=queries, keys=keys)

    def of_heads(self, first: int) -> "Dropout":
        """Of heads from `first` on, counted from those at hand."""
        return replace(self, first_head=self.first_head + first)

    def block(self, rows: slice, columns: slice) -> "Dropout":
        """Of some of the queries and keys at hand."""
        queries, keys = self._tokens()
        return self.at(queries[rows], keys[columns])

    @property
    def scale(self) -> float:
        """What kept weights are multiplied by; kernels do it to the finished sums, as flash-attention's."""
        return 1 / (1 - self.rate)

    def kept(self, items: range, heads: int, like: Tensor) -> Tensor:
        """1 for the weights (items, heads, Sq, Sk) that are kept and 0 for others, in `like`'s dtype and device."""
        queries, keys = (x.to(like.device) for x in self._tokens())
        item, head = (torch.arange(x.start, x.stop, device=like.device) for x in (items, range(heads)))
        stream = _mixed((item[:, None] * 2**32 + head + self.first_head) * GOLDEN + self.seed)[..., None, None]
        number = _mixed(stream + (queries[:, None] * 2**32 + keys) * GOLDEN)
        return (_shifted(number, 64 - BITS) >= round(self.rate * 2**BITS)).to(like.dtype)

    def _tokens(self) -> tuple[Tensor, Tensor]:
        if self.queries is None or self.keys is None:
            raise RuntimeError("dropout is not told which tokens are at hand")
        return self.queries, self.keys


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's output function; products of int64 are taken modulo 2**64."""
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """To the right, with zeros: torch's own shift copies the sign."""
    return (x >> by) & (2 ** (64 - by) - 1)
