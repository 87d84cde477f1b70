import math

import numpy as np
import pytest

from accuracy.config.checks import check
from accuracy.core.errors import ConfigError
from accuracy.inputs import attention_sink, heavy_channels, rising_maxima

S, H, D = 1024, 3, 64


def drawn(module: object, tensor: str, seed: int = 0, **options: float) -> np.ndarray:
    generator = np.random.default_rng([seed, *tensor.encode()])
    return module.draw(generator, (1, S, H, D), tensor, module.Options(**options))[0]  # type: ignore[attr-defined]


def scores_of(module: object, **options: float) -> np.ndarray:
    """(H, S, S), under the default scale."""
    return np.einsum("ihd,jhd->hij", drawn(module, "q", **options), drawn(module, "k", **options)) / math.sqrt(D)


@pytest.mark.parametrize("weight", [0.5, 0.9])
def test_the_sink_has_its_share_of_a_whole_row(weight: float) -> None:
    """ln X of the others' sum X has the standard deviation sqrt((e - 1) / S) = 0.041 and its mean is off by 1 / (2 D);
    the share moves by weight (1 - weight) times that. Rows share their keys: no averaging is counted on; 5 sigma."""
    scores = scores_of(attention_sink, weight=weight)
    share = 1 / (1 + np.exp(scores[:, :, 1:] - scores[:, :, :1]).sum(2))
    off = 5 * math.sqrt((math.e - 1) / S) + 1 / (2 * D) + 1 / S
    assert abs(share.mean() - weight) < weight * (1 - weight) * off


def test_the_sink_s_score_is_that_of_every_row_and_no_other_key_has_a_part_in_it() -> None:
    """To rounding: D products of size up to 5, 2^-53 each."""
    scores = scores_of(attention_sink)
    assert np.allclose(scores[:, :, 0], math.log(S) + 0.5 + math.log(9), atol=D * 5 * 2.0**-53, rtol=1e-14)
    assert np.abs(drawn(attention_sink, "k")[1:].mean(axis=2)).max() < D * 5 * 2.0**-53


def test_the_sink_s_value_is_small() -> None:
    """The root mean square of D H values of 0.1 N(0, 1) is off by 1 / sqrt(2 D H) = 5%; 5 sigma."""
    first = drawn(attention_sink, "v")[0]
    assert math.sqrt(np.mean(first**2)) == pytest.approx(0.1, rel=5 / math.sqrt(2 * D * H))


def test_row_maxima_rise_from_block_to_block() -> None:
    """By 4 a block of 128 keys; the maximum of 128 normal scores varies by 0.43, so 4 are 6.6 sigma of a difference."""
    blocks = scores_of(rising_maxima, rise=32.0).reshape(H, S, S // 128, 128).max(axis=3)
    assert (np.diff(blocks, axis=2) > 0).all()
    falling = scores_of(rising_maxima, rise=-32.0).reshape(H, S, S // 128, 128).max(axis=3)
    assert (np.diff(falling, axis=2) < 0).all()


def test_scores_rise_by_what_is_asked() -> None:
    """Means of the last and the first tenth of keys are 0.9 rise apart; noise: that of a mean of S H rows of N(0, 1)
    scores at S / 10 keys, which share their keys and queries: at most sqrt(2 / 100); 5 sigma."""
    scores = scores_of(rising_maxima, rise=8.0)
    tenth = S // 10
    apart = scores[:, :, -tenth:].mean() - scores[:, :, :tenth].mean()
    assert apart == pytest.approx(8.0 * (S - tenth) / S, abs=5 * math.sqrt(2 / 100))


def test_level_scores_do_not_pass_for_rising_ones() -> None:
    level = scores_of(heavy_channels, sigma=0.0).reshape(H, S, S // 128, 128).max(axis=3)
    assert not (np.diff(level, axis=2) > 0).all()


def test_key_channels_have_scales_that_stay_over_the_tokens() -> None:
    """The logarithms of D channels' scales spread by sigma within 1 / sqrt(2 D) of it; a channel's scale in one half of
    the tokens is that in the other within sqrt(2 / S) = 4%; the mean square of a head's keys is 1, were all of it in
    one channel within sqrt(2 / S). 5 sigma each."""
    keys = drawn(heavy_channels, "k", sigma=1.0)
    halves = [np.sqrt(np.mean(half**2, axis=0)) for half in (keys[: S // 2], keys[S // 2 :])]
    assert np.abs(np.log(halves[0] / halves[1])).max() < 5 * math.sqrt(2 / S)
    assert np.log(halves[0]).std(axis=1) == pytest.approx(1.0, rel=5 / math.sqrt(2 * D))
    assert np.mean(keys**2, axis=(0, 2)) == pytest.approx(1.0, rel=5 * math.sqrt(2 / S))


def test_values_queries_and_gradients_have_no_heavy_channels() -> None:
    """Root mean squares over S draws are off by 1 / sqrt(2 S) = 2.2%; 5 sigma."""
    for tensor in ("q", "v", "dout"):
        sizes = np.sqrt(np.mean(drawn(heavy_channels, tensor) ** 2, axis=0))
        assert np.abs(sizes - 1).max() < 5 / math.sqrt(2 * S)


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (attention_sink, {"weight": 1.0}), (attention_sink, {"value": -1.0}), (rising_maxima, {"rise": math.inf}),
        (heavy_channels, {"sigma": -1.0}), (heavy_channels, {"sigma": math.nan}),
    ],
)  # fmt: skip
def test_a_knob_out_of_range_says_what_is_allowed(module: object, options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        check(module.Options, "inputs", options)  # type: ignore[attr-defined]
