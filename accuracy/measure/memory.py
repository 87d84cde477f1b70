"""How much memory a case needs at most: an estimate by counting tensors, before anything is allocated."""

from accuracy.core import plugins
from accuracy.core.case import Case, Part
from accuracy.core.dtype import FORMATS, accumulation_dtype
from accuracy.measure import condition
from accuracy.reference import choice

FLOAT64 = 8


def bytes_needed(case: Case) -> int:
    """Upper estimate of the device memory of a case, everything that lives at once counted."""
    problem = case.problem
    query = problem.batch * problem.queries * problem.heads * problem.head_dim
    key = problem.batch * problem.seqlen * problem.heads_kv * problem.head_dim
    stored = FORMATS[case.dtype].bytes
    accumulated = FORMATS[accumulation_dtype(case.dtype)].bytes
    inputs = (2 * query + 2 * key) * stored * 2  # whole and as shards
    reference = (2 * query + 2 * key) * FLOAT64 * 2  # whole and as shards
    single_device = (2 * query + 2 * key) * stored * 2
    variant = (2 * query + 4 * key) * accumulated + 2 * (2 * query + 2 * key) * stored
    variant += 2 * (3 * query + 2 * key) * stored + (query + 2 * key) * accumulated  # ranks, blocks side by side
    metrics = 6 * max(query, key) * FLOAT64
    held = case.world_size * max(_held_bytes(case, part) for part in (case.variant.forward, case.variant.backward))
    block = choice.held_bytes(problem, case.device)
    conditions = condition.held_bytes(problem) if case.conditions else 0
    kernel = _held_bytes(case, case.kernel)
    return inputs + reference + single_device + conditions + max(variant + held + kernel, metrics, block)


def _held_bytes(case: Case, part: Part) -> int:
    """What a schedule says a rank keeps while it waits for others, beyond shards and accumulators; what a kernel says
    it takes beyond its arguments and results."""
    held = getattr(plugins.load(part.source), "held_bytes", None)
    return 0 if held is None else int(held(case))
