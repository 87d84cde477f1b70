"""Is a third-party package there (asked without importing it), can it serve a case, and what is it compared with?

No torch here: claims read `OURS`.
"""

from collections.abc import Collection

from accuracy.core import plugins
from accuracy.core.case import Case

OURS = {
    "ring_flash_attn_ring": "ring",
    "ring_flash_attn_zigzag": "zigzag",
    "ring_flash_attn_stripe": "striped",
    "ring_flash_attn_llama3": "llama3",
    "ring_flash_attn_llama3_ring": "llama3_ring",
    "torch_context_parallel_allgather": "ring",
    "torch_context_parallel_allgather_balanced": "zigzag",
    "torch_context_parallel_alltoall": "ring",
    "torch_context_parallel_alltoall_balanced": "zigzag",
    "torch_context_parallel_public": "zigzag",
    "yunchang_ring": "ring",
    "yunchang_zigzag": "zigzag",
    "yunchang_stripe": "striped",
    "yunchang_ulysses": "ulysses",
    "yunchang_hybrid": "usp",
    "ring_attention_pytorch_ring": "ring",
    "ring_attention_pytorch_striped": "striped",
    "ringmaster_ring": "ring",
    "ringmaster_allgather": "llama3",
    "ringmaster_zigzag": "zigzag",
    "ringmaster_distflash": "ring",
    "transformer_engine_p2p": "te_p2p",
    "transformer_engine_all_gather": "te_all_gather",
    "transformer_engine_a2a": "te_a2a",
}
"""Which of our variants has the schedule of a published one."""
UNBALANCED = "torch balances the work of causal masks only; set problem.mask=causal or use an unbalanced variant"


def unsupported(distribution: str) -> str | None:
    """Why nothing of the distribution can run, or None."""
    there = plugins.version(distribution)
    return None if there else f"{distribution} is not installed; pip install 'attention-accuracy[packages]'"


def called(case: Case) -> str:
    """The name of the function that the case measures."""
    return str(dict(case.variant.options)["fn"]).rpartition(".")[2]


def unsupported_case(
    distribution: str, case: Case, *, float64: bool = True, causal_only: Collection[str] = (),
    to_itself: Collection[str] = (),
) -> str | None:  # fmt: skip
    """Why the distribution cannot run a case, or None. float64: whether it has it; causal_only, to_itself: functions
    without full masks, and those that send to their own rank where there is one."""
    name = called(case)
    if missing := unsupported(distribution):
        return missing
    if case.dtype == "float64" and not float64:
        return f"{distribution} keeps its sums in float32; use dtype=float32 or a 16-bit one"
    if not case.problem.causal and name in causal_only:
        return f"{distribution}'s {name} computes causal masks only; set problem.mask=causal"
    if case.world_size == 1 and case.device == "cpu" and name in to_itself:
        return f"{distribution}'s {name} sends to its own rank at world_size 1, which gloo cannot; use 2 or more ranks"
    return None


def unshared(case: Case, ranks: int) -> str | None:
    """Why so many ranks cannot share the case's heads, or None."""
    if case.problem.heads % ranks or case.problem.heads_kv % ranks:
        name = called(case)
        return f"{name} splits heads over {ranks} ranks: problem.heads and problem.heads_kv must be multiples of it"
    return None
