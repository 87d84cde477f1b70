"""Tokens of padding are not measured: which are they, and what of a rank's elements is left?

Zeros stand behind a sequence that the ranks cannot share; inputs, reference and dout are zero there. What a schedule
returns for them is thrown away, as a model does with it, unless it is not finite: that would spread.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.sharding import lengths_of
from accuracy.measurement.metrics import Array
from accuracy.results.table import ALL_TENSORS
from accuracy.runtime.sharding import join, token_map
from accuracy.world.base import Results


def share(case: Case) -> Array:
    """Return the share of each rank's tokens that is no padding, (W,)."""
    if not is_padded(case):
        return np.ones(case.world_size)
    return _real(case).double().mean(1).numpy()


def blanked(case: Case, results: Sequence[Results]) -> list[Results]:
    """Return the ranks' out, lse, dq, dk, dv (and dsink) with zeros for what is finite of padding."""
    if not is_padded(case):
        return list(results)
    real = _real(case)
    if bool(real.all()):
        return list(results)
    return [
        tuple(_blanked(name, x, tokens) for name, x in zip(ALL_TENSORS, each, strict=False))
        for tokens, each in zip(real, results, strict=True)
    ]


def _blanked(name: str, x: Tensor | None, real: Tensor) -> Tensor | None:
    if x is None or name == "dsink":
        return x
    tokens = real.to(x.device) if name == "lse" else real.to(x.device)[:, None, None]
    return x.masked_fill(~tokens & x.isfinite(), 0.0)


def joined(case: Case, results: Sequence[Results]) -> dict[str, Tensor]:
    """Return the tensors that all ranks returned, of the whole sequence without padding, in token layout and in their
    own dtypes."""
    found = {}
    for name, ranks in zip(("out", "lse", "dq", "dk", "dv"), zip(*results, strict=True), strict=False):
        returned = [x for x in ranks if x is not None]
        if len(returned) == len(ranks):
            shards = torch.stack(returned)
            shards = shards.transpose(-1, -2) if name == "lse" else shards
            found[name] = join(shards, case.variant.sharding)[:, : case.problem.length(name)]
    return found


def is_padded(case: Case) -> bool:
    """Return whether the sequence, or a rank's shard, is padded with zeros."""
    return case.problem.padding is not None or bool(lengths_of(case.variant.sharding))


def _real(case: Case) -> Tensor:
    """Return which of the ranks' tokens are no padding, (W, S/W)."""
    length = case.problem.seqlen
    return token_map(case.variant.sharding, length, case.world_size) < length
