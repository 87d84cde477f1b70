"""Which errors are none that rounding makes? Proven element by element, where a case's errors are explained.

In: a case, its targets and a returned tensor. Out: how many of its elements are farther from the reference than the
certain bound (`accuracy.bound`) of the loosest policy in the coarsest format that the case names: everything may be
stored in it. A function of a user's promises no more than float32. Where the single-device kernel is beyond it too, the
kernel is outside of the policy, and nothing is counted.
"""

from functools import reduce

import numpy as np

from accuracy.bound.policy import INSIDE, Policy, cast, loosest
from accuracy.bound.running import bounds
from accuracy.core.case import Case
from accuracy.core.dtype import EIGHT_BITS, EXACT_IN, coarser
from accuracy.measurement.compare import in_turn, is_padded, stored_dtype
from accuracy.measurement.metrics import appended
from accuracy.measurement.observe import Observation
from accuracy.measurement.targets import Named, Targets
from accuracy.reference.float64 import Reference
from accuracy.results.table import Columns
from accuracy.runtime import given_mask
from accuracy.runtime.sharding import cut, sharding_of

PARTS = ("splits", "key_chunk", "query_chunk")
"""Knobs that cut a rank's keys or rows into parts: into how many, or how long a part is."""
MOST_SCORES = 2**24


def columns_of(observation: Observation) -> dict[str, Columns]:
    """Return the column `beyond` of the results, by tensor, of each rank and of all together; none where there is no
    bound."""
    case, targets, results = observation.case, observation.targets, observation.results
    arithmetic = str(dict(case.variant.options).get("arithmetic"))
    in_8_bits = arithmetic in EIGHT_BITS and case.inputs.name != EXACT_IN.get(arithmetic)
    low_wires = case.forward_precision.low_wires or case.backward_precision.low_wires
    if is_padded(case) or case.problem.pairs > MOST_SCORES or low_wires or in_8_bits:
        return {}
    stored_lse = coarser(_format_of(case, "lse"), stored_dtype(case, "lse", results))
    policy = loosest(_format_of(case), _pieces(case), stored_lse)
    if case.dtype == "float32" and arithmetic in INSIDE:
        policy = cast(policy, arithmetic)
    limits = _limits(case, targets, policy)
    layout = ("contiguous" if case.world_size == 1 else sharding_of(case)), case.world_size
    columns: dict[str, Columns] = {}
    for name, x in in_turn(case, targets, results):
        exact, limit = targets.reference[name], limits.get(name)
        if limit is None or ((targets.single_device(case)[name] - exact).abs() > limit).any():
            continue
        error = (x - targets.target(case, name).values).abs()
        found = (error > cut(limit, *layout)).flatten(1).sum(1).cpu().numpy()
        columns[name] = {"beyond": appended(found.astype(np.int64)).tolist()}
    return columns


def _pieces(case: Case) -> int:
    """How many partial results a row, or a gradient, may be joined from: two chunks a rank, and parts of a rank's."""
    parts = 1
    for name, value in (*case.variant.options, *case.kernel.options):
        if name in PARTS and value:
            parts = max(parts, int(value) if name == "splits" else -(-case.problem.seqlen // int(value)))
    return 2 * case.world_size * parts


def _format_of(case: Case, tensor: str = "") -> str:
    """The coarsest format that a case is asked to store anything in; of lse alone, if there is no coarser one, that in
    which sums are kept."""
    options = dict((*case.variant.options, *case.kernel.options))
    is_function = case.variant.name == "callable" or "fn" in dict(case.variant.options)
    in_float32 = tensor == "lse" or (is_function and case.dtype == "float64")
    policies = (vars(each).values() for each in (case.forward_precision, case.backward_precision))
    named = [*options.values(), *(word for words in policies for word in words)]
    split = str(options.get("arithmetic")).startswith("split")
    named += ["bfloat16"] if options.get("tf32") or split else []
    return reduce(coarser, map(str, named), "float32" if in_float32 else case.dtype)


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
            mask=given_mask.in_four(problem, q.dtype, q.device),
        )  # fmt: skip
        certain = {name: bound.certain for name, bound in found.items()}
        return certain | {"lse": certain["lse"].transpose(-1, -2)}

    return targets.once(policy, made)
