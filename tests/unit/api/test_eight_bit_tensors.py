"""`assert_close` of tensors in 8 bits and their scales: limits of the format in place of an atol of 0.5."""

from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from tests.strangers import refused

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {E4M3: 448.0, E5M2: 57344.0, torch.int8: 127.0}


def quantised(x: Tensor, dtype: torch.dtype, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """In 8 bits, and what to multiply it with; dims: over which a scale is shared."""
    scale = x.abs().amax(dims, keepdim=True) / LARGEST[dtype]
    scaled = x / scale
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype), scale


def inputs(seed: int, dtype: torch.dtype, dims: tuple[int, ...], spread: float = 1.0) -> dict[str, Any]:
    """q, k, v (B, S, H, D) and their scales; heads are of unlike size."""
    generator, found = torch.Generator().manual_seed(seed), {}
    for name, heads in (("q", 4), ("k", 2), ("v", 2)):
        x = torch.randn(2, 96, heads, 32, generator=generator) * spread * (1 + torch.arange(heads)).view(-1, 1)
        form = E4M3 if name == "v" and dtype == torch.int8 else dtype
        found[name], scale = quantised(x, form, dims)
        found[f"{name}_descale"] = scale.flatten()[0] if len(dims) == 4 else scale[:, 0, :, 0]
    return found


def attention(
    q: Tensor, k: Tensor, v: Tensor, q_descale: Tensor, k_descale: Tensor, v_descale: Tensor, causal: bool = True,
    weights: torch.dtype = E4M3,
) -> Tensor:  # fmt: skip
    """Stands for a fused kernel in 8 bits: P, at most 1, is cast before it is multiplied; scales come at the ends."""
    scales = [x.view(1, 1, 1, 1) if x.dim() == 0 else x[:, :, None, None] for x in (q_descale, k_descale, v_descale)]
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    k, v, *of_keys = (x.repeat_interleave(2, 1) if x.shape[1] == 2 else x for x in (k, v, *scales[1:]))
    scores = (q @ k.transpose(2, 3)) * scales[0] * of_keys[0] * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    p = (scores - scores.amax(-1, keepdim=True)).exp()
    out = (p.to(weights).float() @ v) * of_keys[1] / p.sum(-1, keepdim=True)
    return out.transpose(1, 2).to(torch.bfloat16)


@pytest.mark.parametrize("dtype", [E4M3, E5M2, torch.int8])
@pytest.mark.parametrize("dims", [(0, 1, 2, 3), (1, 3)])
def test_healthy_attention_in_eight_bits_passes(dtype: torch.dtype, dims: tuple[int, ...]) -> None:
    for seed in range(3):
        given = inputs(seed, dtype, dims, (1.0, 0.2, 3.0)[seed])
        found = accuracy.assert_close(attention, **given, causal=True)
        assert set(found) == {"out"}


WRONG = {
    "k's scale on v": lambda how: how | {"v_descale": how["k_descale"]},
    "no scale of q": lambda how: how | {"q_descale": torch.ones_like(how["q_descale"])},
    "other heads' scale": lambda how: how | {"v_descale": how["v_descale"].flip(-1)},
    "v scaled by 1.02": lambda how: how | {"v_descale": 1.02 * how["v_descale"]},
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_scale_that_is_used_otherwise_is_found_where_an_atol_of_a_half_passes(fault: str) -> None:
    given = inputs(0, E4M3, (1, 3), 0.07)

    def wrong(q: Tensor, k: Tensor, v: Tensor, causal: bool, **how: Tensor) -> Tensor:
        return attention(q, k, v, causal=causal, **WRONG[fault](how))

    torch.testing.assert_close(wrong(**given, causal=True), attention(**given), atol=0.5, rtol=0.0)
    said = refused("out is wrong", wrong, **given, causal=True)
    assert "weights once in float8_e4m3fn" in said


@pytest.mark.parametrize("names", ["q", "qk", "v", ""])
def test_tensors_in_sixteen_bits_may_stand_beside_them(names: str) -> None:
    """A cache in 8 bits, SageAttention's values in 16; names: of those that have no scale."""
    given = inputs(0, E4M3, (1, 3))
    for name in names:
        scale = given[f"{name}_descale"][:, None, :, None]
        given[name], given[f"{name}_descale"] = (given[name].float() * scale).bfloat16(), torch.ones(1, 1)
    told = {name: x for name, x in given.items() if not (name.endswith("descale") and name[0] in names)}

    def mixed(q: Tensor, k: Tensor, v: Tensor, wrong: float = 1.0, out: torch.dtype = torch.bfloat16) -> Tensor:
        how = {name: x for name, x in given.items() if name.endswith("descale")}
        return (wrong * attention(q, k, v, **how, causal=False, weights=torch.float32)).to(out)

    accuracy.assert_close(mixed, **told)
    for dtype in (torch.bfloat16, torch.float32):
        refused("out is wrong", lambda q, k, v, dtype=dtype: mixed(q, k, v, 1.1, dtype), **told)
