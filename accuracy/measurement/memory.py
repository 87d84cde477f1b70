"""How much memory a case needs at most: an estimate by counting tensors, before anything is allocated."""

from accuracy.core.case import Case, Problem
from accuracy.core.dtype import FORMATS, accumulation_dtype
from accuracy.kernel.base import kernel_of
from accuracy.reference import float64
from accuracy.variant.ring import COPIED_ELEMENTS

FLOAT64 = 8
RANK_BYTES = 700 * 2**20
"""Of each rank on a shared GPU beyond its tensors: its CUDA context and libraries."""
SCORE_COPIES = 10
"""Copies of a score that a kernel keeps: weights, gradients, masks. A cap doubles it."""


def bytes_needed(case: Case) -> int:
    """Upper estimate of the device memory of a case in bytes: what lives throughout, and the largest of its stages."""
    query, key = _elements(case.problem)
    tensors, stored = 2 * query + 2 * key, FORMATS[case.dtype].bytes
    references = 2 if case.inputs_dtype else 1  # of the quantised inputs, and of the unquantised ones
    throughout = 2 * tensors * (2 * stored + references * FLOAT64)  # inputs, single device, reference; whole and cut
    if case.options_of("conditions") is not None:
        throughout += FLOAT64 * (2 * tensors + 10 * _block(case.problem, float64.BLOCK_ELEMENTS))
    metrics = 6 * max(query, key) * FLOAT64
    stages = _variant_bytes(case), metrics, reference_bytes(case.problem)
    sharing = case.world_size * RANK_BYTES if case.sums and case.device == "cuda" else 0
    return throughout + max(stages) + sharing


def _elements(problem: Problem) -> tuple[int, int]:
    """Return how many elements q has (dout, out and dq have as many), and how many k has (as v, dk and dv)."""
    width = problem.batch * max(problem.head_dim, problem.value_dim)
    return problem.queries * problem.heads * width, problem.seqlen * problem.heads_kv * width


def _block(problem: Problem, most: int) -> int:
    """Scores of one block of rows of a head."""
    return min(most, min(1024, problem.queries) * problem.seqlen)


def reference_bytes(problem: Problem) -> int:
    """Return what the reference takes beyond its inputs and results."""
    return FLOAT64 * 5 * _block(problem, float64.BLOCK_ELEMENTS)


def _variant_bytes(case: Case) -> int:
    """All ranks of a simulated world at work: their accumulators, results and blocks, and the kernel's own memory."""
    problem, options = case.problem, dict(case.variant.options)
    query, key = _elements(problem)
    stored, accumulated = FORMATS[case.dtype].bytes, FORMATS[accumulation_dtype(case.dtype)].bytes
    needed = (3 * query + 6 * key) * accumulated + 10 * (query + key) * stored
    if problem.heads != problem.heads_kv:  # a kernel may repeat k and v for every query head
        needed += 3 * key * problem.heads // problem.heads_kv * accumulated
    copies = SCORE_COPIES * (1 if problem.softcap is None else 2)
    needed += copies * kernel_of(case.kernel).scores_at_once(problem, case.device) * accumulated
    chunk, heads = (int(str(options.get(name) or 0)) for name in ("key_chunk", "heads_stride"))
    if case.world == "simulated" and case.device == "cuda":  # operands and results of several calls
        calls = max(case.world_size - 1, problem.seqlen // (case.world_size * chunk) if chunk else 0)
        needed += 13 * min(COPIED_ELEMENTS, query * calls) * stored
    if "heads_stride" in options:  # so many heads' keys are gathered, and each rank waits with their gradients
        ranks = case.world_size
        summed = max(key * (heads or problem.heads_kv) // problem.heads_kv, min(key, COPIED_ELEMENTS // ranks))
        needed += 6 * key * stored + 4 * summed * accumulated
        if case.variant.backward.source == case.variant.forward.source:
            wire = FORMATS[case.backward_precision.dtype("gradient_wire", case.dtype)].bytes
            needed += 3 * summed * wire * (ranks if case.world == "simulated" else 1)
    return needed
