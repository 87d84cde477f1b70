"""A function some of whose products are coarser is told and passes; a fault beside them is found."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from accuracy import assert_close
from tests.slow.foreign.functions import eager
from tests.strangers import Mixed, Product, heads_first, refused, split_16, tf32, tf32_cut, visible

PLACES = {"scores": (1, 1, 0, 0), "values": (0, 0, 1, 1), "backward": (0, 1, 0, 1), "forward": (1, 0, 1, 0),
          "scores ahead": (1, 0, 0, 0)}  # fmt: skip


def attention_of(product: Product, place: str, dq: float = 1.0) -> Callable[..., Tensor]:
    """Attention whose other products are in float32; dq: a factor of it, as a fault. exp(s - max s) v is divided by its
    sum, so that autograd multiplies a dout that is divided."""
    scores, scores_back, values, values_back = ((torch.matmul, product)[each] for each in PLACES[place])

    def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
        q, k, v = heads_first(q * dq + q.detach() * (1 - dq), k, v)
        weights = Mixed.apply(q * softmax_scale, k.mT, scores, scores_back)
        weights = visible(weights) if causal else weights
        weights = (weights - weights.amax(-1, keepdim=True).detach()).exp()
        out: Tensor = Mixed.apply(weights, v, values, values_back) / weights.sum(-1, keepdim=True)
        return out.transpose(1, 2)

    return attend


@pytest.mark.stress(5, "place", "product")
@pytest.mark.parametrize("product", [split_16, tf32, tf32_cut])
@pytest.mark.parametrize("place", PLACES)
def test_some_coarser_products_are_a_fact_and_a_factor_beside_them_is_found(place: str, product: Product) -> None:
    q, k, v, dout = (torch.randn(1, 77, 2, 48, generator=torch.Generator().manual_seed(each)) for each in range(4))
    how = {"dout": dout, "causal": True}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert_close(attention_of(product, place), q, k, v, **how)
    words = "16 bits" if product is split_16 else "cut off" if product is tf32_cut else "rounded to 10"
    assert [words in str(each.message) for each in told] == [True]
    refused("is wrong", attention_of(product, place), q, k, v, **how, arithmetic="float32")
    assert_close(attention_of(product, place), q, k, v, **how, arithmetic="tf32")
    factor = 1 + (2.0**-10 if product is split_16 else 2.0**-7)
    refused("dq is wrong", attention_of(product, place, factor), q, k, v, **how)


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_a_small_fault_of_a_function_in_float32_is_no_coarser_product(mean: float) -> None:
    """Another scale is off as scores are whose operands are cut off, an lse of large scores as TF32 makes it."""
    q, k, v, dout = (torch.randn(1, 77, 2, 48, generator=torch.Generator().manual_seed(each)) for each in range(4))
    q, k = q + mean, k + mean
    for factor in (0.9993, 1 + 2.0**-12, 1 - 2.0**-11, 1 + 2.0**-10):
        if not mean:  # else dq is a sum that cancels
            refused("dq is wrong", attention_of(torch.matmul, "scores", factor), q, k, v, dout=dout, causal=True)
        refused("is wrong", lambda q, k, v, f=factor: eager(q, k, v, causal=True, softmax_scale=f * 48**-0.5), q, k, v,
                causal=True)  # fmt: skip
        out, lse = eager(q, k, v, causal=True, softmax_scale=48**-0.5)
        refused("lse is wrong", out, q, k, v, causal=True, lse=lse * factor)
