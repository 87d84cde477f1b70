"""A case's results against its targets: every tensor's metrics, errors by token, and significant bits.

In: what the ranks returned. Out: numbers. Tensors are compared one after another in the same memory; their metrics are
made of sums, of all tensors at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import coarser, tensor_dtype
from accuracy.core.errors import WrongResult
from accuracy.measurement import metrics
from accuracy.measurement.distance import Distance, distance
from accuracy.measurement.metrics import Array, Sums, significand_bits
from accuracy.measurement.targets import Targets
from accuracy.results.table import ALL_TENSORS
from accuracy.runtime.sharding import join, sharding_of, token_map
from accuracy.variant.base import schedule_of
from accuracy.world.base import Results


@dataclass(frozen=True)
class Compared:
    """A tensor's numbers. shape: (W, B, S/W, heads[, D]); columns: `metrics.metric_columns`; distance: from the
    reference;
    significand_bits: (W + 1,)."""

    shape: torch.Size
    columns: dict[str, Array]
    distance: Distance
    significand_bits: Array


def compare(case: Case, targets: Targets, results: Sequence[Results]) -> dict[str, Compared]:
    """Return each tensor that the ranks returned, by name. Raises WrongResult where one has another shape or dtype."""
    distances: dict[str, Distance] = {}
    bits: dict[str, Array] = {}
    sums: tuple[list[Sums], ...] = [], [], [], []  # of error, diff, single device and rounding floor, by tensor
    losses: list[Sums] = []
    share = _real(case).double().mean(1).numpy()  # of each rank's tokens, what is no padding
    for name, x in in_turn(case, targets, results):
        dtype = stored_dtype(case, name, results)
        distances[name] = distance(x, targets.target(case, name), ulp_dtype=dtype)
        bits[name] = significand_bits(x, None if name == "delta" else dtype)
        if targets.unquantised:
            losses.append(distance(x, targets.target(case, name, "unquantised"), signed=False).sums)
        four = (
            distances[name].sums,
            distance(x, targets.target(case, name, "single_device"), signed=False).sums,
            targets.single_device_sums(case, name),
            targets.floor_sums(case, name, dtype),
        )
        count = four[0].count if name == "dsink" else np.maximum(1.0, four[0].count * share)  # all padding: one, exact
        for each, one in zip(sums, four, strict=True):
            each.append(replace(one, count=count))
    natural = targets.natural(case.problem)
    error, diff, single_device, floor = (metrics.of_tensors(each) for each in sums)
    together = metrics.metric_columns(
        error,
        diff,
        single_device,
        floor,
        ulp=np.array([each.ulp for each in distances.values()]),
        natural=np.array([[natural[name]] for name in distances]),
    )
    if losses:
        together |= metrics.loss_columns(metrics.of_tensors(losses))
    found = {}
    for number, (name, from_reference) in enumerate(distances.items()):
        reference = targets.target(case, name).values
        columns = {column: values[number] for column, values in together.items()}
        most = bits[name].max(keepdims=True)
        found[name] = Compared(reference.shape, columns, from_reference, metrics.appended(bits[name], most))
    return found


def stored_dtype(case: Case, name: str, results: Sequence[Results]) -> str:
    """Return the dtype that a tensor is held to: the case's for it; of an lse that came in a coarser one, that."""
    expected = tensor_dtype(name, case.dtype)
    place = ALL_TENSORS.index(name)
    x = results[0][place] if place < len(results[0]) else None
    return coarser(expected, _word(x)) if name == "lse" and x is not None else expected


def in_turn(case: Case, targets: Targets, results: Sequence[Results]) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor that the ranks returned, (W, B, S/W, heads[, D]) in float64.

    delta is what the ranks' stored out makes it, as in `targets.in_token_layout`.
    """
    delta = None
    for name, ranks in zip(ALL_TENSORS, zip(*results, strict=True), strict=False):
        returned = [x for x in ranks if x is not None]
        if not returned:
            continue
        if len(returned) < len(ranks):
            raise RuntimeError(f"only some ranks returned {name}")
        reference, expected = targets.target(case, name).values, tensor_dtype(name, case.dtype)
        if name == "lse" and schedule_of(case.variant.forward).any_lse_dtype:
            expected = _word(returned[0])
        shape = (reference.transpose(-1, -2) if name == "lse" else reference).shape[1:]
        for x in returned:  # a fault of the variant, not something to broadcast or cast away
            if x.shape != shape:
                raise WrongResult(f"{name} came as {tuple(x.shape)}, expected {tuple(shape)}")
            if _word(x) != expected:
                raise WrongResult(f"{name} came as {_word(x)}, expected {expected}")
        stacked = torch.stack(returned).double()
        if name == "out":
            delta = (targets.dout(case) * stacked).sum(-1)
        yield name, stacked.transpose(-1, -2) if name == "lse" else stacked
    if delta is not None:
        yield "delta", delta


def _word(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def blanked(case: Case, results: Sequence[Results]) -> list[Results]:
    """Return the ranks' out, lse, dq, dk, dv (and dsink) with zeros for what is finite of padding."""
    if not is_padded(case):
        return list(results)

    def blank(name: str, x: Tensor | None, real: Tensor) -> Tensor | None:
        if x is None or name == "dsink":
            return x
        tokens = real.to(x.device) if name == "lse" else real.to(x.device)[:, None, None]
        return x.masked_fill(~tokens & x.isfinite(), 0.0)

    return [
        tuple(blank(name, x, tokens) for name, x in zip(ALL_TENSORS, each, strict=False))
        for tokens, each in zip(_real(case), results, strict=True)
    ]


def joined(case: Case, results: Sequence[Results]) -> dict[str, Tensor]:
    """Return the tensors that all ranks returned, of the whole sequence without padding, in token layout and in their
    own dtypes."""
    found = {}
    for name, ranks in zip(("out", "lse", "dq", "dk", "dv"), zip(*results, strict=True), strict=False):
        returned = [x for x in ranks if x is not None]
        if len(returned) == len(ranks):
            shards = torch.stack(returned)
            shards = shards.transpose(-1, -2) if name == "lse" else shards
            found[name] = join(shards, sharding_of(case))[:, : case.problem.length(name)]
    return found


def is_padded(case: Case) -> bool:
    """Return whether the sequence, a document, or a rank's shard, is padded with zeros."""
    return not bool(_real(case).all())


def _real(case: Case) -> Tensor:
    """Return which of the ranks' tokens are no padding, (W, S/W)."""
    length = case.problem.seqlen
    return token_map(sharding_of(case), length, case.world_size) < length
