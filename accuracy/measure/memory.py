"""How much memory a case needs at most: an estimate by counting tensors, before anything is allocated."""

from accuracy.core.case import Case
from accuracy.core.dtype import FORMATS, accumulation_dtype
from accuracy.kernel.base import kernel_of
from accuracy.measure import condition
from accuracy.reference import choice
from accuracy.variant.base import schedule_of

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
    schedules = (schedule_of(part) for part in (case.variant.forward, case.variant.backward))
    held = case.world_size * max(schedule.held_bytes(case) for schedule in schedules)
    block = choice.held_bytes(problem, case.device)
    conditions = condition.held_bytes(problem) if case.conditions else 0
    kernel = kernel_of(case.kernel).held_bytes(case)
    return inputs + reference + single_device + conditions + max(variant + held + kernel, metrics, block)
