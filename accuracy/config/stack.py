"""A stack: the model that a variant is put into, and how a configuration's `stack` becomes some.

Legend beside the case's: L layers, E width of the residual stream, F of the feed-forward, V words of the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from accuracy.config import checks
from accuracy.core.errors import ConfigError

WEIGHTS = ("random", "trained")
TRAINED_SHAPE = {"width": 64, "feed_forward": 192, "vocabulary": 256, "heads": 4, "heads_kv": 2, "head_dim": 32}
RESIDUALS = ("input", "accumulate", "none")


@dataclass(frozen=True)
class Stack:
    """L blocks as Llama has them: RMSNorm, projections, RoPE, attention, residual; with F, a gated feed-forward too.

    weights: `random`, normal with variance 1 / fan-in, or `trained`, the small model that comes with the package, its
    layers repeated to any depth; gain: factor of the query and the key weights, so that logits grow by its square;
    residual: dtype of the residual stream, the case's (`input`) or float32 (`accumulate`), or `none`: nothing is added;
    norm: whether there is RMSNorm at all.
    """

    layers: int
    width: int
    feed_forward: int = 0
    vocabulary: int = 256
    weights: str = "random"
    gain: float = 1.0
    residual: str = "input"
    norm: bool = True

    def identity(self) -> dict[str, object]:
        """The stack's columns of the table."""
        return asdict(self)


def stacks_of(node: Any) -> tuple[Stack, ...]:
    """Every combination of the knobs of `stack`; none for `stack.layers=0`. Raises ConfigError."""
    names = [field.name for field in fields(Stack)]
    checks.exact_keys("knob of stack", node, names)
    if node["layers"] == 0:
        return ()
    axes: dict[str, tuple[Any, ...]] = {
        **{name: checks.integers(f"stack.{name}", node[name], 1) for name in ("layers", "width", "vocabulary")},
        "feed_forward": checks.integers("stack.feed_forward", node["feed_forward"], 0),
        "weights": checks.choices("stack.weights", node["weights"], WEIGHTS),
        "gain": _positive("stack.gain", node["gain"]),
        "residual": checks.choices("stack.residual", node["residual"], RESIDUALS),
        "norm": tuple(checks.typed("stack.norm", each, bool) for each in checks.axis("stack.norm", node["norm"])),
    }
    return tuple(Stack(**choice) for choice in checks.product(axes))


def _positive(where: str, value: Any) -> tuple[float, ...]:
    values = tuple(checks.typed(where, each, float, checks.LIST_TOO) for each in checks.axis(where, value))
    for each in values:
        if not 0 < each < float("inf"):
            raise ConfigError(f"{where}={each}; allowed: numbers above 0, such as 1, 2, 4 (exact in every dtype)")
    return values


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
