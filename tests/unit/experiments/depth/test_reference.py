from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from experiments.depth.attention import Exact
from experiments.depth.layers import DIFFERENTIATED, block, loss_of, quantities
from experiments.depth.weights import Model, model_of
from tests.unit.api.attention import attend
from tests.unit.experiments.depth.stacks import one

SUMS = 2.2e-13
"""No sum has more than 48 terms, so it errs by 48 u = 5e-15 at most of the sum of its absolute terms; 7 products a
layer, there and back, in 3 layers are 42 of them."""


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, causal=True)[0]


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
