"""Attention of a block with a quantisation policy: online softmax over chunks of keys, every cast and sum emulated.

What is quantised at once is quantised before the loops (q, k, v, dout); weights and gradients of scores are, tile by
tile, when they are made. Products are of the cast values, in the accumulation dtype, but for `accumulator_bits`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from accuracy.core.quantisation import NOT, Policy
from accuracy.kernel.base import Gradients, How, dtype_of
from accuracy.kernel.block import heads
from accuracy.kernel.block.sight import of_products
from accuracy.kernel.lowp.tensor_core import Factor, Sum, factor, factor_of_weights, product
from accuracy.runtime.rounding import quantise, rotation


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
    for rows, columns, hidden in block.tiles():
        found, _ = block.scores(queries.rows(rows), keys.rows(columns), rows, hidden)
        before = largest[..., rows, :]
        grown = torch.maximum(before, found.amax(-1, keepdim=True))
        base = grown.masked_fill(grown == -torch.inf, 0.0)  # a row may see nothing of its first tile
        weights, rescale = torch.exp(found - base), torch.exp(before - base)
        total[..., rows, :] = total[..., rows, :] * rescale + weights.sum(-1, keepdim=True)
        sums.rescale(rows, rescale)
        sums.add(rows, factor_of_weights(weights, policy.of_rows), values.rows(columns))
        largest[..., rows, :] = grown
    out = sums.value() / total
    return block.result("out", out), (largest + total.log()).flatten(1, 2).squeeze(-1)


def backward(block: Block, dout: Tensor, out: Tensor, lse: Tensor) -> Gradients:
    """dq (B, Sq, H, D), dk, dv (B, Sk, Hk, D) in the accumulation dtype, for out and lse over all keys."""
    policy, group = block.policy, block.k.shape[2]
    dout, out = (heads.by_group(x, group, block.compute) for x in (dout, out))
    normaliser = lse.to(block.compute).unflatten(1, (group, -1)).unsqueeze(-1)
    queries, keys, values = block.queries(), block.keys(), block.values(axis=-1)
    cast = factor(dout, policy.do, policy.of_rows)
    delta = ((cast.values * cast.scale if policy.delta_of_cast else dout) * out).sum(-1, keepdim=True)

    def tiles() -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Rows, keys, weights and unrounded gradients of scores."""
        for rows, columns, hidden in block.tiles():
            found, slope_of_cap = block.scores(queries.rows(rows), keys.rows(columns), rows, hidden)
            weights = torch.exp(found - normaliser[..., rows, :])
            dweights = product(policy, cast.rows(rows), values.rows(columns).mT)
            slope = (dweights - delta[..., rows, :]) * weights
            yield rows, columns, weights, slope if slope_of_cap is None else slope * slope_of_cap

    largest = _largest(policy, (slope for *_, slope in tiles()))
    tokens, of_keys = block.queries(axis=-2), block.keys(axis=-2)  # cast along the tokens, as is dout
    cast_dout = factor(dout, policy.do, policy.of_rows, axis=-2)
    dquery, common = Sum(replace(policy, half_terms=0), torch.zeros_like(block.query)), torch.zeros_like(delta)
    dkey, dvalue = torch.zeros_like(keys.values), torch.zeros_like(values.values)
    for rows, columns, weights, slope in tiles():
        along_keys = factor(slope, policy.ds, policy.of_rows, -1, largest, policy.ds_by_half)
        along_rows = factor(slope, policy.ds, policy.of_rows, -2, largest)
        dquery.add(rows, along_keys, of_keys.rows(columns))
        if policy.dq_by_tile:
            dquery.flush()
        if block.mean_key is not None:
            common[..., rows, :] += slope.sum(-1, keepdim=True)
        of_rows = product(policy, along_rows.mT, tokens.rows(rows))
        dkey[..., columns, :] = block.turned_back(of_rows.sum(2, keepdim=True))
        probabilities = factor_of_weights(weights, policy.of_rows, axis=-2)
        dvalue[..., columns, :] = product(policy, probabilities.mT, cast_dout.rows(rows)).sum(2, keepdim=True)
    scale, dq = block.how.scale, block.turned_back(dquery.value())
    if block.mean_key is not None:  # 0 in exact arithmetic over all keys, but not over a ring's block of them
        dq = dq + common * block.mean_key
    return block.result("dq", dq * scale), block.result("dk", dkey * scale), block.result("dv", dvalue)


def _largest(policy: Policy, slopes: Iterable[Tensor]) -> Tensor | None:
    """The largest gradient of a score, of the tensor or of each head, where one scale is to serve all tiles."""
    if policy.ds == NOT or policy.granularity not in ("tensor", "head"):
        return None
    dims = {"tensor": (0, 1, 2, 3, 4), "head": (3, 4)}[policy.granularity]
    found = [slope.abs().amax(dims, keepdim=True) for slope in slopes]
    return torch.stack(found).amax(0) if found else None
