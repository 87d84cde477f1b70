"""Which errors are none that rounding makes? Proven element by element, where a case's errors are explained.

In: a case, its targets and a returned tensor. Out: how many of its elements are farther from the reference than the
certain bound (`accuracy.bound`) of the loosest policy in the coarsest format that the case names: everything may be
stored in it. A function of a user's promises no more than float32. Where the single-device kernel is beyond it too, the
kernel is outside of the policy, and nothing is counted.
"""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from accuracy.bound.policy import Policy, loosest
from accuracy.bound.running import bounds
from accuracy.core.case import Case
from accuracy.core.dtype import FORMATS, coarser
from accuracy.measurement import padding
from accuracy.measurement.compare import in_turn, stored_dtype
from accuracy.measurement.metrics import Array, appended
from accuracy.measurement.observe import Observation
from accuracy.measurement.targets import Named, Targets
from accuracy.reference.float64 import Reference
from accuracy.results.table import Columns
from accuracy.runtime.sharding import cut

PARTS = ("splits", "key_chunk", "query_chunk")
"""Knobs that cut a rank's keys or rows into parts: into how many, or how long a part is."""
MOST_SCORES = 2**24


def columns_of(observation: Observation) -> dict[str, Columns]:
    """Return the column `beyond` of the results, by tensor."""
    case, targets, results = observation.case, observation.targets, observation.results
    stored_lse = stored_dtype(case, "lse", results)
    counts = ((name, count(case, targets, name, x, stored_lse)) for name, x in in_turn(case, targets, results))
    return {name: {"beyond": found.tolist()} for name, found in counts if found is not None}


def count(case: Case, targets: Targets, tensor: str, x: Tensor, stored_lse: str) -> Array | None:
    """Of each rank and of all together, (W + 1,). x: (W, B, S/W, heads[, D]), float64; stored_lse: in which lse came;
    None: there is no bound."""
    problem = case.problem
    if (
        problem.dropout is not None
        or padding.is_padded(case)
        or tensor in ("delta", "dsink")
        or problem.pairs > MOST_SCORES
        or case.forward_precision.low_wires
        or case.backward_precision.low_wires
    ):
        return None
    limits = _limits(case, targets, loosest(format_of(case), pieces(case), coarser(format_of(case, "lse"), stored_lse)))
    exact = targets.reference[tensor]
    if ((targets.single_device(case)[tensor] - exact).abs() > limits[tensor]).any():
        return None
    error = (x - targets.target(case, tensor).values).abs()
    layout = ("contiguous" if case.world_size == 1 else case.variant.sharding), case.world_size
    found = (error > cut(limits[tensor], *layout)).flatten(1).sum(1).cpu().numpy()
    return appended(found.astype(np.int64))


def pieces(case: Case) -> int:
    """How many partial results a row, or a gradient, may be joined from: two chunks a rank, and parts of a rank's."""
    parts = 1
    for name, value in (*case.variant.options, *case.kernel.options):
        if name in PARTS and value:
            parts = max(parts, int(value) if name == "splits" else -(-case.problem.seqlen // int(value)))
    return 2 * case.world_size * parts


def format_of(case: Case, tensor: str = "") -> str:
    """The coarsest format that a case is asked to store anything in; of lse alone, if there is no coarser one, that in
    which sums are kept."""
    own = "float32" if tensor == "lse" or case.variant.name == "callable" or "fn" in dict(case.variant.options) else ""
    found = own if own and case.dtype == "float64" else ("float32" if tensor == "lse" else case.dtype)
    for name in _named(case):
        found = coarser(found, name)
    return found


def _named(case: Case) -> Iterator[str]:
    """The formats in a case's knobs."""
    options = dict((*case.variant.options, *case.kernel.options))
    yield from (str(value) for value in options.values() if value in FORMATS)
    yield from (
        value for policy in (case.forward_precision, case.backward_precision) for value in vars(policy).values()
    )
    if options.get("tf32"):
        yield "bfloat16"


def _limits(case: Case, targets: Targets, policy: Policy) -> Named:
    """In token layout, kept for cases of the same policy."""

    def made() -> Named:
        problem, exact = case.problem, targets.reference
        heads_first = {name: exact[name].transpose(-1, -2) for name in ("lse", "delta")}
        reference = Reference(**{name: exact[name] for name in ("out", "dq", "dk", "dv")}, **heads_first)
        q, k, v, dout = targets.inputs.tensors
        found = bounds(
            q, k, v, dout, reference, policy, scale=problem.softmax_scale, **problem.seen_by,
            softcap=problem.softcap, sinks=problem.sink_logits,
        )  # fmt: skip
        certain = {name: bound.certain for name, bound in found.items()}
        return certain | {"lse": certain["lse"].transpose(-1, -2)}

    return targets.once(policy, made)
