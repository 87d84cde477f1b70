"""Distributions of q, k, v and dout: one function each, whose keyword arguments are what the configuration sets.

A function takes numpy's generator, the shape (B, S, heads, D) and the tensor's name (q, k, v or dout), and returns
float64. `PARTS` names all of them in the form that a user's file has: `draw` with a fourth argument, an `Options`.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le, Lt

from accuracy.core.dtype import Finite, Positive, Share

Shape = tuple[int, ...]
Generator = np.random.Generator
NotNegative = Annotated[float, Ge(0), Lt(math.inf)]
TIED_SCORE = 20.0  # of a pair under the default scale; others' spread is 20 / sqrt(D): in all they weigh 1e-7 to 1e-4


def gaussian(generator: Generator, shape: Shape, tensor: str, *, std: Positive = 1.0) -> np.ndarray:
    """Independent entries of N(0, std^2): what most projects test with."""
    return generator.standard_normal(shape) * std


def uniform(generator: Generator, shape: Shape, tensor: str, *, low: Finite = 0.0, high: Finite = 1.0) -> np.ndarray:
    """Independent entries spread evenly over [low, high), [0, 1) by default: `torch.rand`, with which xformers tests.

    All have one sign, so that out is a mean that does not shrink with the length, and every weight is near 1 / length.
    """
    if not low < high:
        raise ValueError(f"low={low}, high={high}; allowed: numbers, low below high")
    return low + (high - low) * generator.random(shape)


def sum_loss(generator: Generator, shape: Shape, tensor: str) -> np.ndarray:
    """Entries of U[0, 1) and dout = 1: what `torch.rand` and `out.sum().backward()` in many tests amount to.

    Scores hardly differ and dq and dk nearly cancel: a tolerance that suits such inputs may let anything pass.
    """
    return np.ones(shape) if tensor == "dout" else generator.random(shape)


def peaked(generator: Generator, shape: Shape, tensor: str, *, std: Positive = 6.0) -> np.ndarray:
    """Scores so far apart that a row is nearly one-hot: what breaks merges that exponentiate a difference of lse.

    q and k are N(0, std^2), so scores spread by std^2. At 6, the lse of two blocks differ by more than 88.7 for many
    rows, where exp overflows float32 (EasyContext #14, ring-flash-attention #30 and #34). v and dout are N(0, 1).
    """
    return generator.standard_normal(shape) * (std if tensor in "qk" else 1.0)


def outliers(
    generator: Generator, shape: Shape, tensor: str, *,
    rate: Annotated[float, Ge(0), Le(1)] = 0.001, scale: Positive = 10.0,
) -> np.ndarray:  # fmt: skip
    """N(0, 1) + N(0, 100) Bernoulli(0.001) in q, k and v: Shah et al. 2024 (arXiv 2407.08608), section 4.3.

    FlashAttention-3 was measured on it. dout stays N(0, 1).
    """
    values = generator.standard_normal(shape)
    if tensor != "dout":
        values += generator.standard_normal(shape) * scale * (generator.random(shape) < rate)
    return values


def attention_sink(
    generator: Generator, shape: Shape, tensor: str, *, weight: Share = 0.9, value: NotNegative = 0.1
) -> np.ndarray:
    """Every query gives most of its weight to the first token, whose value is small, as in trained models.

    Xiao et al. 2023 (arXiv 2309.17453); Gu et al. 2024 (arXiv 2410.10781, section 3). No other key has a part in the
    direction of the sink's key, (1, ..., 1) / sqrt(D), and every query has the same part in it: under the default scale
    its score is ln S + 1/2 + ln(weight / (1 - weight)), with the number of queries for S. S other scores of
    N(0, 1 - 1/D) add up to nearly S exp(1/2): the sink's share is `weight` in a row with S keys, more in rows with
    fewer. dout is N(0, 1).
    """
    values = generator.standard_normal(shape)
    if tensor == "v":
        values[:, 0] *= value
    if tensor in "qk":
        values -= values.mean(axis=3, keepdims=True)
    if tensor == "q":
        score = math.log(shape[1]) + 0.5 + math.log(weight / (1 - weight))
        values += score / math.sqrt(shape[3])
    if tensor == "k":
        values[:, 0] = 1.0  # of norm sqrt(D), as the other keys: q k^T / sqrt(D) is the score
    return values


def heavy_channels(generator: Generator, shape: Shape, tensor: str, *, sigma: NotNegative = 1.0) -> np.ndarray:
    """Keys with a few large channels, the same ones at every token: what key caches of trained models look like.

    Liu et al. 2024 (KIVI, arXiv 2402.02750, figure 2), Hooper et al. 2024 (KVQuant, arXiv 2401.18079, section 3.1).
    Each channel of a head's keys has a scale exp(sigma N(0, 1)) over the head's root mean square of them: scores keep
    the variance of Gaussian inputs, but come from a few products. q, v and dout are N(0, 1).
    """
    if tensor != "k":
        return generator.standard_normal(shape)
    scale = np.exp(sigma * generator.standard_normal((1, 1, *shape[2:])))
    scale /= np.sqrt(np.mean(scale**2, axis=3, keepdims=True))
    return generator.standard_normal(shape) * scale


def rising_maxima(generator: Generator, shape: Shape, tensor: str, *, rise: Finite = 32.0) -> np.ndarray:
    """Scores that rise along the keys: every block of keys has a larger row maximum than all before it.

    An online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867) then rescales its sums at every block, and
    FlashAttention-4 where the rise passes its threshold. Keys and queries have a part along (1, ..., 1) / sqrt(D), the
    keys' growing with their position: under the default scale the score of key j is N(0, 1 - 1/D) + rise j / S. v and
    dout are N(0, 1).
    """
    values = generator.standard_normal(shape)
    if tensor not in "qk":
        return values
    values -= values.mean(axis=3, keepdims=True)
    part = math.sqrt(abs(rise) / math.sqrt(shape[3]))  # of each entry: D part^2 / sqrt(D) is the whole rise
    if tensor == "q":
        return values + part
    return values + math.copysign(part, rise) * (np.arange(shape[1]) / shape[1])[None, :, None, None]


def shifted(generator: Generator, shape: Shape, tensor: str, *, scores: Finite = -150.0) -> np.ndarray:
    """Scores that all lie far below zero, or far above: a softmax without them is the same.

    float32 holds exp(-87) to full digits and nothing below exp(-104); so a maximum that starts at 0 in place of minus
    infinity, or padding whose score is 0, outweighs every key (flash-attention #2082, pytorch #196678). q and k have a
    part along (1, ..., 1) / sqrt(D), of sizes whose product is `scores` under the default scale; what is left of them
    has none. v and dout are N(0, 1).
    """
    values = generator.standard_normal(shape)
    if tensor not in "qk":
        return values
    values -= values.mean(axis=3, keepdims=True)
    part = math.sqrt(abs(scores) / math.sqrt(shape[3]))
    return values + (math.copysign(part, scores) if tensor == "k" else part)


def tied(generator: Generator, shape: Shape, tensor: str) -> np.ndarray:
    """Two tied row maxima and values of one sign: where rounding to 16 bits is biased.

    Qiu and Yao 2025 (arXiv 2510.04212). Tokens come in pairs with one key, each query points at the pair before its
    own: two weights are the largest alike. Values are uniform between -2 and -1, so that rounding the true answer is
    unbiased. The sum of two equal weights times values needs one bit more than the values have, and the small weights,
    of the same sign, push its rounding one way. Directions are the same for every seed.
    """
    if tensor == "dout":
        return generator.standard_normal(shape)
    if tensor == "v":
        return -1.0 - generator.random(shape)
    _, length, _, dim = shape
    pair = np.arange(length) // 2
    signs = np.random.Generator(np.random.Philox(length)).integers(0, 2, (pair[-1] + 1, dim))
    directions = (2.0 * signs - 1.0) * np.sqrt(TIED_SCORE / np.sqrt(dim))
    if tensor == "k":
        return np.broadcast_to(directions[pair][None, :, None, :], shape).copy()
    aim = directions[np.maximum(pair - 1, 0)][None, :, None, :]
    return aim * generator.uniform(0.8, 1.2, shape)  # rows of one score would all have their lse rounded to one side


def zero_query(generator: Generator, shape: Shape, tensor: str) -> np.ndarray:
    """A probe with an exact answer: q = 0, so every visible key weighs the same; k, v and dout are N(0, 1).

    lse is the logarithm of the number of keys that a row sees, out the mean of their values.
    """
    return np.zeros(shape) if tensor == "q" else generator.standard_normal(shape)


def one_value(generator: Generator, shape: Shape, tensor: str) -> np.ndarray:
    """A probe with an exact answer: V = 1, so out is 1 whatever the scores are (it found flash-attention PR #2721).

    A row's weights sum to one, through every block and merge. q, k and dout are N(0, 1).
    """
    return np.ones(shape) if tensor == "v" else generator.standard_normal(shape)


def one_gradient(generator: Generator, shape: Shape, tensor: str) -> np.ndarray:
    """A probe with an exact answer: V = dout = 1, so dq = dk = 0, and dv is what each key weighs over all rows.

    dout V^T and delta are the same number, D, and cancel; what is left is rounding. q and k are N(0, 1).
    """
    return np.ones(shape) if tensor in ("v", "dout") else generator.standard_normal(shape)


def index_value(generator: Generator, shape: Shape, tensor: str) -> np.ndarray:
    """A probe with an exact answer: q = 0 and V spells each key's position in binary: out says which keys were seen.

    Entry d of a value is bit d of the position (modulo the width), as +1 or -1. A row's out is the mean over its keys:
    swapped, repeated and missing keys change it, where their number alone need not. k and dout are N(0, 1).
    """
    if tensor != "v":
        return zero_query(generator, shape, tensor)
    bit = np.arange(shape[3]) % max(1, (shape[1] - 1).bit_length())
    code = (np.arange(shape[1])[:, None] >> bit) & 1
    return np.broadcast_to(2.0 * code[None, :, None, :] - 1.0, shape).copy()


def one_hot(generator: Generator, shape: Shape, tensor: str) -> np.ndarray:
    """A probe that spells pairs: every row is a unit vector, so out holds the softmax's weights, a key a dimension.

    Token s of head h is 1 in dimension s + S h (modulo the width) and 0 elsewhere, a query counted from the last
    dimension: where no code is both a query's and a key's, all scores are 0 and all weights of a row are alike. With
    the S tokens of all heads of a group in the width, dq, dk and dv hold one pair of a query and a key in each element
    too. The same for every seed.
    """
    _, length, heads, width = shape
    one = (np.arange(length)[:, None] + length * np.arange(heads)) % width
    return np.broadcast_to(np.eye(width)[width - 1 - one if tensor == "q" else one], shape).copy()


def copied(generator: Generator, shape: Shape, tensor: str, *, octaves: NotNegative = 0.0) -> np.ndarray:
    """A probe with an exact answer: every row of out is one row of v, as what v is rounded to inside a kernel shows.

    q and k of a token are the same D random signs, times 16. So the score of its own key is 256 D scale, and of any
    other key 256 sqrt(D) scale times N(0, 1): with scale D^-0.5 and 32 dimensions or more the other weights are below
    float32's range. v is N(0, 1) times 2^e, with e from -octaves to octaves over the dimensions: formats of few
    exponents lose values that TF32 keeps. q and k are the same for every seed.
    """
    values = generator.standard_normal(shape)
    _, length, _, width = shape
    if tensor in "qk":
        signs = np.random.Generator(np.random.Philox(length)).integers(0, 2, (length, width))
        return np.broadcast_to((32.0 * signs - 16.0)[None, :, None, :], shape).copy()
    return values * 2.0 ** np.linspace(-octaves, octaves, width) if tensor == "v" else values


def whole(generator: Generator, shape: Shape, tensor: str) -> np.ndarray:
    """q and k that are exact in INT8: whole numbers up to 127 over 64, with a scale a token, a channel, a head or a
    tensor; see `_exact`. v and dout are N(0, 1)."""
    values = generator.standard_normal(shape)
    if tensor not in "qk":
        return values
    return _exact(generator.integers(-127, 128, shape).astype(float), 127.0, tensor) / 64


def few_digits(generator: Generator, shape: Shape, tensor: str) -> np.ndarray:
    """q and k that are exact in FP8 (e4m3, e5m2), as they are or with a scale, as `whole` in INT8.

    1, 1.25, 1.5 or 1.75 times a power of two from 1/8 to 1, and 3.5: divided by 448 or 57,344, the largest of the
    formats, it is a power of two. v and dout are N(0, 1).
    """
    values = generator.standard_normal(shape)
    if tensor not in "qk":
        return values
    sizes = generator.integers(4, 8, shape) * 2.0 ** generator.integers(-5, -1, shape)
    return _exact(np.copysign(sizes, values), 3.5, tensor)


def _exact(values: np.ndarray, largest: float, tensor: str) -> np.ndarray:
    """Values of which every token, and every channel in 16 tokens, has the largest, so that a scale that is made of it
    leaves all exact. Keys come in pairs that add up to zero, since kernels take the mean of all keys off first."""
    _, length, _, width = values.shape
    has_largest = (np.arange(length)[:, None] // 2 + np.arange(width)) % 8 == 0
    values = np.where(has_largest[None, :, None], np.copysign(largest, values), values)
    if tensor == "k":
        values[:, 1::2] = -values[:, : length // 2 * 2 : 2]
    return values


@dataclass(frozen=True)
class Distribution:
    """A distribution as a file of a user's has it: `draw(generator, shape, tensor, options)` and `Options`."""

    function: Callable[..., np.ndarray]

    def draw(self, generator: Generator, shape: Shape, tensor: str, options: Any) -> np.ndarray:
        """Float64 values of one tensor of this shape."""
        return self.function(generator, shape, tensor, **vars(options))

    @cached_property
    def Options(self) -> type:
        """A dataclass of the function's settings. One that it cannot draw a number with raises ValueError."""
        settings = list(inspect.signature(self.function).parameters.values())[3:]

        def try_it(options: Any) -> None:
            self.draw(np.random.default_rng(0), (1, 1, 1, 1), "q", options)

        return make_dataclass(
            "Options", [(each.name, each.annotation, each.default) for each in settings], frozen=True,
            namespace={"__post_init__": try_it, "__module__": __name__},
        )  # fmt: skip


PARTS = {
    each.__name__: Distribution(each)
    for each in (
        gaussian, uniform, sum_loss, peaked, outliers, attention_sink, heavy_channels, rising_maxima, shifted, tied,
        zero_query, one_value, one_gradient, index_value, one_hot, copied, whole,
        few_digits,
    )
}  # fmt: skip
