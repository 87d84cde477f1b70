"""A stack: the model that a variant is put into. No torch here.

Legend beside the case's: L layers, E width of the residual stream, F of the feed-forward, V words of the vocabulary.
"""

from dataclasses import dataclass
from typing import Annotated

from accuracy.core.kinds import FromZero, OneOf, Positive, Whole


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
