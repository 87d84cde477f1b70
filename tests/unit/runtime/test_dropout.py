"""The mask of a dropout is SplitMix64's, and every part of it is a part of the whole."""

import math

import pytest
import torch

from accuracy.runtime.dropout import GOLDEN, Dropout, _mixed

LIKE = torch.empty(0, dtype=torch.float64)


def whole(rate: float = 0.3, seed: int = 7, tokens: int = 48) -> torch.Tensor:
    return Dropout(rate, seed).at(torch.arange(tokens), torch.arange(tokens)).kept(range(2), 4, LIKE)


def test_numbers_are_those_of_the_published_generator() -> None:
    """The first four of seed 1234567, as Vigna's splitmix64.c gives them."""
    places = torch.arange(1, 5) * GOLDEN + 1234567
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [x % 2**64 for x in _mixed(places).tolist()] == expected


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_share_that_is_dropped_is_the_rate_in_every_head_and_along_rows_and_keys(rate: float) -> None:
    """Counts of n independent draws: within 6 standard deviations, sqrt(n rate (1 - rate)); 8 + 512 of them."""
    mask = whole(rate, tokens=256)
    for counted, draws in ((mask.sum((2, 3)), 256**2), (mask.sum((0, 1, 2)), 8 * 256), (mask.sum((0, 1, 3)), 8 * 256)):
        allowed = 6 * math.sqrt(draws * rate * (1 - rate))
        assert ((counted - draws * (1 - rate)).abs() < allowed).all()


def test_seeds_items_and_heads_have_masks_of_their_own() -> None:
    """Two independent masks agree in half of their places; 48^2 of them: within 6 standard deviations, 0.0625."""
    mask = whole(0.5)
    one = mask[0, 0]
    for two in (mask[1, 0], mask[0, 1], whole(0.5, seed=8)[0, 0], one.mT):
        assert abs(float((one == two).double().mean()) - 0.5) < 0.0625
    with pytest.raises(RuntimeError, match="which tokens"):
        Dropout(0.3, 7).kept(range(1), 1, LIKE)
