"""Is a third-party package there (asked without importing it), and can it serve a case?"""

from collections.abc import Collection

from accuracy.core import plugins
from accuracy.core.case import Case

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
