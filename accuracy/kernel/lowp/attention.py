"""Attention of a block with a quantisation policy: online softmax over chunks of keys, every cast and sum emulated.

What is quantised at once is quantised before the loops (q, k, v, dout); weights and gradients of scores are, tile by
tile, when they are made. Products are of the cast values, in the accumulation dtype, but for `accumulator_bits`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from accuracy.core.quantisation import NOT, Policy
from accuracy.kernel.base import Gradients, How, dtype_of
from accuracy.kernel.block import heads
from accuracy.kernel.block.sight import of_products
from accuracy.kernel.lowp.tensor_core import Factor, Sum, factor, factor_of_weights, product
from accuracy.runtime.rounding import quantise, rotation

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Block:
    """q (B, Sq, H, D), k, v (B, Sk, Hk, D) of a call, and how they are seen. key_chunk: keys of a tile."""

    policy: Policy
    q: Tensor
    k: Tensor
    v: Tensor
    how: How
    key_chunk: int
    compute: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compute", dtype_of("accumulate", self.q))

    @cached_property
    def query(self) -> Tensor:
        """(B, Hk, G, Sq, D), unrounded, not turned."""
        return heads.by_group(self.q, self.k.shape[2], self.compute)

    @cached_property
    def mean_key(self) -> Tensor | None:
        """(B, Hk, 1, 1, D) where keys are smoothed."""
        return heads.by_kv_head(self._mean, self.compute) if self.policy.smooth_k else None

    def queries(self, axis: int = -1) -> Factor:
        """(B, Hk, G, Sq, D), turned and cast; axis: along which a product sums."""
        return factor(self._turned(self.query), self.policy.q, self.policy.of_rows, axis)

    def keys(self, axis: int = -1) -> Factor:
        """(B, Hk, 1, Sk, D), smoothed, turned and cast."""
        keys = heads.by_kv_head(self.k - self._mean if self.policy.smooth_k else self.k, self.compute)
        return factor(self._turned(keys), self.policy.k, self.policy, axis)

    def values(self, axis: int) -> Factor:
        """(B, Hk, 1, Sk, D), cast."""
        return factor(heads.by_kv_head(self.v, self.compute), self.policy.v, self.policy, axis)

    def turned_back(self, gradient: Tensor) -> Tensor:
        """A gradient of turned queries or keys as one of the given ones."""
        return gradient @ rotation(*self._turn).mT if self.policy.hadamard else gradient

    def result(self, place: str, x: Tensor) -> Tensor:
        """out or a gradient (B, Hk, G, S, D), cast, as (B, S, H, D)."""
        policy = self.policy.of_rows if place in ("out", "dq") else self.policy
        return heads.by_token(quantise(x, getattr(self.policy, place), policy))

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor | None]]:
        """Keys of each tile, the rows that any of them is seen by, and where one is hidden (None: nowhere)."""
        sight = self.how.sight(self.q, self.k)
        begins = range(0, self.k.shape[1], self.key_chunk)
        for begin in reversed(begins) if self.policy.descending else begins:
            columns = slice(begin, min(begin + self.key_chunk, self.k.shape[1]))
            rows = sight.seen_by(columns)
            if rows.stop > rows.start:
                yield rows, columns, sight.hidden(rows, columns, self.q.device)

    def scores(self, queries: Factor, keys: Factor, rows: slice, hidden: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return what `block.sight.scores` does, for cast queries (..., rows, D) and keys (..., columns, D)."""
        found = product(self.policy, queries, keys.mT)
        if self.mean_key is not None:
            found = found + self.query[..., rows, :] @ self.mean_key.mT
        return of_products(found, self.how.scale, hidden, self.how.softcap)

    @property
    def _mean(self) -> Tensor:
        """The mean key of each head, (B, 1, Hk, D), in the inputs' dtype."""
        return self.k.mean(1, keepdim=True, dtype=self.compute).to(self.k.dtype)

    @property
    def _turn(self) -> tuple[int, torch.dtype, torch.device]:
        return self.q.shape[-1], self.compute, self.q.device

    def _turned(self, x: Tensor) -> Tensor:
        return x @ rotation(*self._turn) if self.policy.hadamard else x


def forward(block: Block) -> tuple[Tensor, Tensor]:
    """out (B, Sq, H, D) and lse (B, H, Sq), natural log, in the accumulation dtype."""
    policy, queries, keys, values = block.policy, block.queries(), block.keys(), block.values(axis=-2)
    shape = block.query.shape[:-1]
    largest = block.query.new_full((*shape, 1), -torch.inf)
    total = torch.zeros_like(largest)
    sums = Sum(policy, block.query.new_zeros(*shape, block.v.shape[-1]))
    least = policy.rescale_bits / LOG2_E
    for rows, columns, hidden in block.tiles():
        found, _ = block.scores(queries.rows(rows), keys.rows(columns), rows, hidden)
        before = largest[..., rows, :]
        grown = torch.maximum(before, found.amax(-1, keepdim=True))
        grown = torch.where((grown - before > least) | (before == -torch.inf), grown, before)
        base = grown.masked_fill(grown == -torch.inf, 0.0)  # a row may see nothing of its first tile
        weights, rescale = _exp(found - base, policy), _exp(before - base, policy)
        total[..., rows, :] = total[..., rows, :] * rescale + weights.sum(-1, keepdim=True)
        sums.rescale(rows, rescale)
        sums.add(rows, factor_of_weights(weights, policy.of_rows), values.rows(columns))
        largest[..., rows, :] = grown
    out = sums.value() / total
    return block.result("out", out), (largest + total.log()).flatten(1, 2).squeeze(-1)


def backward(block: Block, dout: Tensor, out: Tensor, lse: Tensor) -> Gradients:
    """dq (B, Sq, H, D), dk, dv (B, Sk, Hk, D) in the accumulation dtype, for out and lse over all keys."""
    policy, group = block.policy, block.k.shape[2]
    dout_rows, out_rows = (heads.by_group(x, group, block.compute) for x in (dout, out))
    cast = factor(dout_rows, policy.do, policy.of_rows)
    of_delta = cast.values * cast.scale if policy.delta_of_cast else dout_rows
    pass_ = Backward(
        block, block.queries(), block.keys(), block.values(axis=-1), cast, (of_delta * out_rows).sum(-1, keepdim=True),
        lse.to(block.compute).unflatten(1, (group, -1)).unsqueeze(-1),
    )  # fmt: skip
    return pass_.gradients(dout_rows)


@dataclass(frozen=True)
class Backward:
    """What every tile of a backward needs, head-first; queries, keys, values and dout are cast along the head dim."""

    block: Block
    queries: Factor
    keys: Factor
    values: Factor
    dout: Factor
    delta: Tensor
    lse: Tensor

    def gradients(self, dout: Tensor) -> Gradients:
        """dout: unrounded, for casts along the tokens."""
        block, policy = self.block, self.block.policy
        queries, keys = block.queries(axis=-2), block.keys(axis=-2)
        cast_dout = factor(dout, policy.do, policy.of_rows, axis=-2)
        largest = self._largest()
        dquery, common = Sum(replace(policy, half_terms=0), torch.zeros_like(block.query)), torch.zeros_like(self.delta)
        dkey, dvalue = torch.zeros_like(self.keys.values), torch.zeros_like(self.values.values)
        for rows, columns, weights, slope in self._tiles():
            along_keys = self._cast(slope, largest, -1, policy.ds_by_half)
            along_rows = self._cast(slope, largest, -2)
            dquery.add(rows, along_keys, keys.rows(columns))
            if policy.dq_by_tile:
                dquery.flush()
            if block.mean_key is not None:
                common[..., rows, :] += slope.sum(-1, keepdim=True)
            of_rows = product(policy, along_rows.mT, queries.rows(rows))
            dkey[..., columns, :] = block.turned_back(of_rows.sum(2, keepdim=True))
            cast = factor_of_weights(weights, policy.of_rows, axis=-2)
            dvalue[..., columns, :] = product(policy, cast.mT, cast_dout.rows(rows)).sum(2, keepdim=True)
        scale, dq = block.how.scale, block.turned_back(dquery.value())
        if block.mean_key is not None:  # 0 in exact arithmetic over all keys, but not over a ring's block of them
            dq = dq + common * block.mean_key
        return (block.result("dq", dq * scale), block.result("dk", dkey * scale), block.result("dv", dvalue))

    def _tiles(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Rows, keys, weights and unrounded gradients of scores."""
        policy = self.block.policy
        for rows, columns, hidden in self.block.tiles():
            found, slope_of_cap = self.block.scores(self.queries.rows(rows), self.keys.rows(columns), rows, hidden)
            weights = _exp(found - self.lse[..., rows, :], policy)
            dweights = product(policy, self.dout.rows(rows), self.values.rows(columns).mT)
            slope = (dweights - self.delta[..., rows, :]) * weights
            yield rows, columns, weights, slope if slope_of_cap is None else slope * slope_of_cap

    def _largest(self) -> Tensor | None:
        """The largest gradient of a score, of the tensor or of each head, where one scale is to serve all tiles."""
        policy = self.block.policy
        if policy.ds == NOT or policy.granularity not in ("tensor", "head"):
            return None
        dims = {"tensor": (0, 1, 2, 3, 4), "head": (3, 4)}[policy.granularity]
        found = [slope.abs().amax(dims, keepdim=True) for _, _, _, slope in self._tiles()]
        return torch.stack(found).amax(0) if found else None

    def _cast(self, slope: Tensor, largest: Tensor | None, axis: int, by_half: bool = False) -> Factor:
        policy = self.block.policy
        return factor(slope, policy.ds, policy.of_rows, axis, largest, by_half)


def _exp(x: Tensor, policy: Policy) -> Tensor:
    """e^x, by a polynomial on [0, 1) where the policy has one, by Horner's rule."""
    if not policy.exp2_degree:
        return torch.exp(x)
    bits = (x * LOG2_E).clamp_(min=-1000.0)
    whole = bits.floor()
    part, result = bits - whole, torch.zeros_like(bits)
    for coefficient in reversed(_coefficients(policy.exp2_degree)):
        result = result * part + coefficient
    return torch.where(x == -torch.inf, 0.0, result * torch.exp2(whole))


@cache
def _coefficients(degree: int) -> tuple[float, ...]:
    """Coefficients of the polynomial through 2^x at Chebyshev's points on [0, 1], from the constant one up."""
    points = (np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)) + 1) / 2
    return tuple(np.linalg.solve(np.vander(points, increasing=True), np.exp2(points)).tolist())
