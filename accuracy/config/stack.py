"""A stack: the model that a variant is put into, and how a configuration's `stack` becomes some.

Legend beside the case's: L layers, E width of the residual stream, F of the feed-forward, V words of the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from accuracy.config.checks import check, combinations, mapping
from accuracy.core.kinds import FromZero, OneOf, Positive, Whole

TRAINED_SHAPE = {"width": 64, "feed_forward": 192, "vocabulary": 256, "heads": 4, "heads_kv": 2, "head_dim": 32}


@dataclass(frozen=True)
class Stack:
    """L blocks as Llama has them: RMSNorm, projections, RoPE, attention, residual; with F, a gated feed-forward too.

    weights: `random`, normal with variance 1 / fan-in, or `trained`, the small model that comes with the package, its
    layers repeated to any depth; gain: factor of the query and the key weights, so that logits grow by its square;
    residual: dtype of the residual stream, the case's (`input`) or float32 (`accumulate`), or `none`: nothing is added;
    norm: whether there is RMSNorm at all.
    """

    layers: Whole
    width: Whole
    feed_forward: FromZero = 0
    vocabulary: Whole = 256
    weights: Annotated[str, OneOf("random", "trained")] = "random"
    gain: Positive = 1.0
    residual: Annotated[str, OneOf("input", "accumulate", "none")] = "input"
    norm: bool = True

    def identity(self) -> dict[str, object]:
        """The stack's columns of the table."""
        return asdict(self)


def stacks_of(node: Any) -> tuple[Stack, ...]:
    """Every combination of the knobs of `stack`; none for `stack.layers=0`. Raises ConfigError."""
    if mapping("stack", node).get("layers") == 0:
        return ()
    return tuple(check(Stack, "stack", each) for each in combinations("stack", node))


def unsupported(stack: Stack, problem: Mapping[str, object]) -> str | None:
    """Why a stack has no weights for a problem's heads, or None."""
    if stack.weights == "random":
        return None
    given = {**stack.identity(), **problem}
    wrong = {key: value for key, value in TRAINED_SHAPE.items() if given[key] != value}
    if not wrong:
        return None
    where = {True: "stack", False: "problem"}
    needed = ", ".join(f"{where[key in stack.identity()]}.{key}={value}" for key, value in wrong.items())
    return f"stack.weights=trained was trained in another shape; use {needed}"
