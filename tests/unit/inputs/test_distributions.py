import math

import numpy as np
import pytest
import torch

from accuracy.inputs.distributions import PARTS

S, H, D = 1024, 2, 64
SHARES = ((2,), (0,), (0, 1, 2))  # a scale a token, a channel, a tensor


def drawn(name: str, tensor: str, **options: float) -> np.ndarray:
    return PARTS[name].function(np.random.default_rng([0, *tensor.encode()]), (1, S, H, D), tensor, **options)[0]


def scores_of(name: str, **options: float) -> np.ndarray:
    """(H, S, S), under the default scale."""
    return np.einsum("ihd,jhd->hij", drawn(name, "q", **options), drawn(name, "k", **options)) / math.sqrt(D)


@pytest.mark.parametrize("name", PARTS)
def test_every_distribution_draws_finite_float64_and_the_same_again(name: str) -> None:
    for tensor in ("q", "k", "v", "dout"):
        x = drawn(name, tensor)
        assert (x.shape, x.dtype, np.isfinite(x).all()) == ((S, H, D), np.float64, True)
        assert np.array_equal(x, drawn(name, tensor))


@pytest.mark.parametrize("weight", [0.5, 0.9])
def test_the_sink_has_its_share_and_the_same_score_in_every_row(weight: float) -> None:
    """ln X of the others' sum X has the standard deviation sqrt((e - 1) / S) = 0.041 and its mean is off by 1 / (2 D);
    the share moves by weight (1 - weight) times that. Rows share their keys: no averaging is counted on; 5 sigma.
    Scores are right to rounding: D products of size up to 5, 2^-53 each. The sink's value is a tenth of others', whose
    root mean square over D H values is off by 1 / sqrt(2 D H) = 5%; 5 sigma."""
    scores = scores_of("attention_sink", weight=weight)
    share = 1 / (1 + np.exp(scores[:, :, 1:] - scores[:, :, :1]).sum(2))
    off = 5 * math.sqrt((math.e - 1) / S) + 1 / (2 * D) + 1 / S
    assert abs(share.mean() - weight) < weight * (1 - weight) * off
    score = math.log(S) + 0.5 + math.log(weight / (1 - weight))
    assert np.allclose(scores[:, :, 0], score, atol=D * 5 * 2.0**-53, rtol=1e-14)
    assert np.abs(drawn("attention_sink", "k")[1:].mean(axis=2)).max() < D * 5 * 2.0**-53
    first = drawn("attention_sink", "v")[0]
    assert math.sqrt(np.mean(first**2)) == pytest.approx(0.1, rel=5 / math.sqrt(2 * D * H))


def test_row_maxima_rise_by_what_is_asked_and_level_ones_do_not_pass() -> None:
    """By 4 a block of 128 keys; the maximum of 128 normal scores varies by 0.43, so 4 are 6.6 sigma of a difference.
    Means of the last and the first tenth of keys are 0.9 rise apart; noise: that of a mean of S H rows of N(0, 1)
    scores at S / 10 keys, which share their keys and queries: at most sqrt(2 / 100); 5 sigma."""

    def steps(scores: np.ndarray) -> np.ndarray:
        return np.diff(scores.reshape(H, S, S // 128, 128).max(axis=3), axis=2)

    assert (steps(scores_of("rising_maxima", rise=32.0)) > 0).all()
    assert (steps(scores_of("rising_maxima", rise=-32.0)) < 0).all()
    assert not (steps(scores_of("heavy_channels", sigma=0.0)) > 0).all()  # the planted fault: scores that are level
    scores, tenth = scores_of("rising_maxima", rise=8.0), S // 10
    difference = scores[:, :, -tenth:].mean() - scores[:, :, :tenth].mean()
    assert difference == pytest.approx(8.0 * (S - tenth) / S, abs=5 * math.sqrt(2 / 100))


def test_key_channels_alone_have_scales_that_stay_over_the_tokens() -> None:
    """The logarithms of D channels' scales spread by sigma within 1 / sqrt(2 D) of it; a channel's scale in one half of
    the tokens is that in the other within sqrt(2 / S) = 4%; the mean square of a head's keys is 1, were all of it in
    one channel within sqrt(2 / S). Root mean squares of the others are off by 1 / sqrt(2 S). 5 sigma each."""
    keys = drawn("heavy_channels", "k", sigma=1.0)
    halves = [np.sqrt(np.mean(half**2, axis=0)) for half in (keys[: S // 2], keys[S // 2 :])]
    assert np.abs(np.log(halves[0] / halves[1])).max() < 5 * math.sqrt(2 / S)
    assert np.log(halves[0]).std(axis=1) == pytest.approx(1.0, rel=5 / math.sqrt(2 * D))
    assert np.mean(keys**2, axis=(0, 2)) == pytest.approx(1.0, rel=5 * math.sqrt(2 / S))
    for tensor in ("q", "v", "dout"):
        sizes = np.sqrt(np.mean(drawn("heavy_channels", tensor) ** 2, axis=0))
        assert np.abs(sizes - 1).max() < 5 / math.sqrt(2 * S)


@pytest.mark.parametrize(("name", "form", "share"), [
    *(("few_digits", form, share) for form in (torch.float8_e4m3fn, torch.float8_e5m2) for share in ((), *SHARES)),
    *(("whole", torch.int8, share) for share in SHARES),
])  # fmt: skip
def test_q_and_k_are_exact_in_8_bits_whatever_has_a_scale_and_gaussian_ones_are_not(
    name: str, form: torch.dtype, share: tuple[int, ...]
) -> None:
    """share: the dimensions of (S, H, D) that have one scale; none: no scale. A scale may be off by a unit roundoff of
    float32."""
    most = torch.iinfo(form).max if form is torch.int8 else torch.finfo(form).max

    def is_exact(name: str, tensor: str) -> bool:
        x = torch.from_numpy(drawn(name, tensor)).float()[:16]
        scale = x.abs().amax(share, keepdim=True) / most if share else torch.ones(1)
        y = (x / scale).round() if form is torch.int8 else (x / scale).to(form).float()
        return torch.allclose(y * scale, x, rtol=2.0**-23, atol=0.0)

    for tensor in "qk":
        assert (is_exact(name, tensor), is_exact("gaussian", tensor)) == (True, False)
