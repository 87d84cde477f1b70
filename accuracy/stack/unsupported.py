"""Which cases cannot be stacks? In: a case with a stack. Out: the reason, or None."""

from accuracy.core.case import Case, Reruns
from accuracy.core.fields import STACK, names, values
from accuracy.core.sharding import lengths_of
from accuracy.stack import weights as trained
from accuracy.variant.base import schedule_of


def unsupported(case: Case) -> str | None:
    """Return why a case with a stack cannot be measured, beyond what its attention needs; None: it can."""
    if case.world != "simulated":
        return f"world={case.world} has no stacks; use world=simulated"
    if case.inputs_dtype:
        return f"dtype={case.inputs_dtype} is of attention's inputs, which a stack makes itself; use dtype={case.dtype}"
    if case.inputs.name != "gaussian":
        return "inputs has no say in a stack, which makes its own from stack.weights; drop it"
    if case.problem.seqlen_q is not None:
        return "problem.seqlen_q has no place in a stack, where queries and keys are the same words; drop it"
    if case.problem.head_dim_v is not None:
        return "problem.head_dim_v has no place in a stack, whose values are as wide as its keys; drop it"
    if case.problem.sinks is not None:
        return "problem.sinks has no place in a stack, whose blocks are Llama's; drop it"
    if case.problem.padding is not None:
        return "problem.padding has no place in a stack, whose words are all measured; drop it"
    if lengths_of(case.variant.sharding):
        return f"sharding={case.variant.sharding} has no place in a stack, whose ranks hold as many words; drop it"
    if case.reruns != Reruns() or case.conditions:
        return "reruns and conditions are of attention alone; drop them or use stack.layers=0"
    if case.problem.head_dim % 2:
        return f"RoPE turns pairs: problem.head_dim={case.problem.head_dim} is odd; use an even one"
    for schedule in map(schedule_of, (case.variant.forward, case.variant.backward)):
        if schedule.code(case):  # a callable or a package: one autograd function, no halves
            return f"variant {case.variant.name} has no separate backward to put into a stack; use one with schedules"
        if not schedule.gradients:
            return f"variant {case.variant.name} gives no gradients; use one with a backward"
    given = values(case)  # the trained model's weights fit one shape
    wrong = {name: size for name, size in trained.SHAPE.items() if given[name] != size}
    if given["weights"] == "random" or not wrong:
        return None
    group = {name: "stack" if name in names(STACK) else "problem" for name in wrong}
    needed = ", ".join(f"{group[name]}.{name}={size}" for name, size in wrong.items())
    return f"stack.weights=trained was trained in another shape; use {needed}"
