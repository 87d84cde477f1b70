from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.depth.attention import Exact
from experiments.depth.layers import DIFFERENTIATED, block, loss_of, quantities
from experiments.depth.weights import Model, model_of
from tests.unit.experiments.depth.stacks import one

SUMS = 2.2e-13
"""No sum has more than 48 terms, so it errs by 48 u = 5e-15 at most of the sum of its absolute terms; 7 products a
layer, there and back, in 3 layers are 42 of them."""


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.einsum("bhqk,bkhd->bqhd", F.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1), v)


def plain_loss(model: Model, layers: list[Mapping[str, Tensor]], residual: bool) -> Tensor:
    x = model.embedding[model.words[:, :-1]]
    for weights in layers:
        x = block(x, weights, plain_attention, 8, residual)
    return loss_of(x, model.norm, model.head, model.words[:, 1:])


@pytest.mark.parametrize("words", [(), ("stack.norm=false",), ("stack.residual=none",), ("stack.feed_forward=0",)])
def test_the_gradients_are_those_of_torch_s_autograd_through_the_whole_stack(words: tuple[str, ...]) -> None:
    case, stack = one("dtype=float64", "world_size=1", "variant=ring", *words)
    model = model_of(case, stack)
    found = {(x.layer, x.tensor): x.value for x in quantities(model, stack, Exact(case), torch.float64, 8)}
    layers = [{name: x.clone().requires_grad_() for name, x in layer.items()} for layer in model.layers]
    loss = plain_loss(model, layers, stack.residual != "none")
    loss.backward()
    assert found[3, "loss"].item() == pytest.approx(loss.item(), rel=SUMS)
    for place, layer in enumerate(layers, 1):
        for name in DIFFERENTIATED:
            expected = layer[name].grad
            assert expected is not None
            assert (found[place, f"d_{name}"] - expected).norm() <= SUMS * expected.norm()


def test_words_of_later_places_change_no_earlier_output() -> None:
    case, stack = one("dtype=float64", "world_size=1", "variant=ring")
    model = model_of(case, stack)
    other = model.words.clone()
    other[:, 12:] = (other[:, 12:] + 1) % 48
    outputs = [
        next(x.value for x in quantities(made, stack, Exact(case), torch.float64, 8) if (x.layer, x.tensor) == (3, "x"))
        for made in (model, replace(model, words=other))
    ]
    assert torch.equal(outputs[0][:, :12], outputs[1][:, :12])
    assert not torch.equal(outputs[0][:, 12:], outputs[1][:, 12:])
