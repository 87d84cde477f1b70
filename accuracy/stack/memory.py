"""How much memory a stack takes: what is held at once, in bytes, rounded up rather than down."""

from accuracy.config.stack import Stack
from accuracy.core.case import Case
from accuracy.core.dtype import FORMATS
from accuracy.measure.memory import bytes_needed as attention_bytes


def bytes_needed(case: Case, stack: Stack) -> int:
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
    return weights + kept + max(at_work, ends) + attention_bytes(case)
