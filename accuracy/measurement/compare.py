"""A case's results against its targets: every tensor's metrics, errors by token, and significant bits.

In: what the ranks returned. Out: numbers. Tensors are compared one after another in the same memory; their metrics are
made of sums, of all tensors at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import coarser, tensor_dtype
from accuracy.core.errors import WrongResult
from accuracy.measurement import metrics, padding
from accuracy.measurement.distance import Distance, distance
from accuracy.measurement.metrics import Array, Sums, significand_bits
from accuracy.measurement.targets import Targets
from accuracy.results.table import ALL_TENSORS
from accuracy.variant.base import schedule_of
from accuracy.world.base import Results


@dataclass(frozen=True)
class Compared:
    """A tensor's numbers. shape: (W, B, S/W, heads[, D]); columns: `metrics.metric_columns`; apart: from the reference;
    significand_bits: (W + 1,)."""

    shape: torch.Size
    columns: dict[str, Array]
    apart: Distance
    significand_bits: Array


@dataclass(frozen=True)
class _Apart:
    """How far a tensor is from the reference, from the single-device kernel's, and from the reference of unquantised
    inputs; bits: (W,)."""

    reference: Distance
    single_device: Distance
    bits: Array
    unquantised: Distance | None = None


def compare(case: Case, targets: Targets, results: Sequence[Results]) -> dict[str, Compared]:
    """Each tensor that the ranks returned, by name. Raises WrongResult where one has another shape or dtype."""
    dtypes = {name: stored_dtype(case, name, results) for name in ALL_TENSORS}
    apart = _apart(case, targets, results, dtypes)

    def of_all(sums: Callable[[str], Sums]) -> Sums:
        found = {name: sums(name) for name in apart}
        return metrics.of_tensors(
            [replace(each, count=padding.counted(case, name, each.count)) for name, each in found.items()]
        )

    together = metrics.metric_columns(
        error=of_all(lambda name: apart[name].reference.sums),
        diff=of_all(lambda name: apart[name].single_device.sums),
        single_device=of_all(lambda name: targets.single_device_sums(case, name)),
        floor=of_all(lambda name: targets.floor_sums(case, name, dtypes[name])),
        ulp=np.array([each.reference.ulp for each in apart.values()]),
        natural=np.array([[targets.natural(case.problem)[name]] for name in apart]),
    )
    if lost := [each.unquantised.sums for each in apart.values() if each.unquantised is not None]:
        together |= metrics.loss_columns(metrics.of_tensors(lost))
    found = {}
    for number, (name, each) in enumerate(apart.items()):
        reference = targets.target(case, name).values
        columns = {column: values[number] for column, values in together.items()}
        if case.conditions:
            from accuracy.measurement import condition

            columns |= condition.columns(case, targets.magnitudes(case), name, reference)
        bits = metrics.appended(each.bits, each.bits.max(keepdims=True))
        found[name] = Compared(reference.shape, columns, each.reference, bits)
    return found


def stored_dtype(case: Case, name: str, results: Sequence[Results]) -> str:
    """The dtype that a tensor is held to: the case's for it; of an lse that came in a coarser one, that."""
    expected = tensor_dtype(name, case.dtype)
    place = ALL_TENSORS.index(name)
    x = results[0][place] if place < len(results[0]) else None
    return coarser(expected, _word(x)) if name == "lse" and x is not None else expected


def _apart(case: Case, targets: Targets, results: Sequence[Results], dtypes: dict[str, str]) -> dict[str, _Apart]:
    """Compare each tensor that the ranks returned with all of its targets; the distances by tensor."""
    found = {}
    for name, x in in_turn(case, targets, results):
        lost = distance(x, targets.target(case, name, "unquantised"), signed=False) if targets.unquantised else None
        found[name] = _Apart(
            reference=distance(x, targets.target(case, name), ulp_dtype=dtypes[name]),
            single_device=distance(x, targets.target(case, name, "single_device"), signed=False),
            bits=significand_bits(x, None if name == "delta" else dtypes[name]),
            unquantised=lost,
        )
    return found


def in_turn(case: Case, targets: Targets, results: Sequence[Results]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor that the ranks returned, (W, B, S/W, heads[, D]) in float64.

    delta is what the ranks' stored out makes it, as in `targets.in_token_layout`.
    """
    delta = None
    for name, ranks in zip(ALL_TENSORS, zip(*results, strict=True), strict=False):
        given = [x for x in ranks if x is not None]
        if not given:
            continue
        if len(given) < len(ranks):
            raise RuntimeError(f"only some ranks returned {name}")
        _check(case, name, given, targets.target(case, name).values)
        stacked = torch.stack(given).double()
        if name == "out":
            delta = (targets.dout(case) * stacked).sum(-1)
        yield name, stacked.transpose(-1, -2) if name == "lse" else stacked
    if delta is not None:
        yield "delta", delta


def _check(case: Case, name: str, ranks: Sequence[Tensor], reference: Tensor) -> None:
    """A wrong shape or dtype is a fault of the variant, not something to broadcast or cast away."""
    expected = tensor_dtype(name, case.dtype)
    any_dtype = name == "lse" and schedule_of(case.variant.forward).any_lse_dtype
    whole = (reference.transpose(-1, -2) if name == "lse" else reference).shape[1:]
    for x in ranks:
        if x.shape != whole:
            raise WrongResult(f"{name} came as {tuple(x.shape)}, expected {tuple(whole)}")
        if x.dtype != (ranks[0].dtype if any_dtype else getattr(torch, expected)):
            raise WrongResult(f"{name} came as {_word(x)}, expected {_word(ranks[0]) if any_dtype else expected}")


def _word(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
