"""How much memory a case needs at most: an estimate by counting tensors, before anything is allocated."""

from accuracy.core.case import Case, Stack
from accuracy.core.dtype import FORMATS, accumulation_dtype
from accuracy.kernel.base import kernel_of
from accuracy.measurement import condition
from accuracy.reference import choice
from accuracy.variant.base import schedule_of

FLOAT64 = 8


def bytes_needed(case: Case) -> int:
    """Upper estimate of the device memory of a case, everything that lives at once counted."""
    return _attention_bytes(case) + (0 if case.stack is None else _stack_bytes(case, case.stack))


def _attention_bytes(case: Case) -> int:
    problem = case.problem
    head_dim = max(problem.head_dim, problem.value_dim)
    query = problem.batch * problem.queries * problem.heads * head_dim
    key = problem.batch * problem.seqlen * problem.heads_kv * head_dim
    stored = FORMATS[case.dtype].bytes
    accumulated = FORMATS[accumulation_dtype(case.dtype)].bytes
    inputs = (2 * query + 2 * key) * stored * 2  # whole and as shards
    references = 2 if case.inputs_dtype else 1  # of the quantised inputs, and of the unquantised ones
    reference = (2 * query + 2 * key) * FLOAT64 * 2 * references  # whole and as shards
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


def _stack_bytes(case: Case, stack: Stack) -> int:
    """Weights; x, dx and the compared gradients of all layers, of the reference and of single device; a layer at
    work."""
    problem, size = case.problem, FORMATS[case.dtype].bytes
    tokens = problem.batch * problem.seqlen
    across = (problem.heads + problem.heads_kv) * problem.head_dim
    compared = 2 * stack.width * across
    others = 3 * stack.width * stack.feed_forward
    stream = tokens * stack.width
    weights = stack.layers * (compared + others) * size + 2 * stack.vocabulary * stack.width * size
    reference = 4 if size == 2 else 8
    kept = stack.layers * ((2 * stream + compared) * (reference + size) + stream * 8)
    at_work = 8 * (3 * (compared + others) + tokens * (8 * stack.width + 8 * across + 6 * stack.feed_forward))
    ends = 3 * 8 * tokens * stack.vocabulary
    return weights + kept + max(at_work, ends)
