"""A merge of partial attention: healthy ones pass, whoever wrote them, and each wrong one is named."""

import importlib.util
import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from tests.strangers import unmerged

Merge = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
COUNT = 5


def partials(dtype: torch.dtype, *, empty: bool = True, spread: float = 10.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """outs (N, B, S, H, D) and lses (N, B, H, S); some rows of some partials, and one row of all, have no keys."""
    generator = torch.Generator().manual_seed(seed)
    outs = torch.randn(COUNT, 2, 24, 3, 16, generator=generator).to(dtype)
    lses = spread * torch.randn(COUNT, 2, 3, 24, generator=generator)
    if empty:
        lses[torch.rand(lses.shape, generator=generator) < 0.3] = -math.inf
        lses[:, 0, 1, 5] = -math.inf
        outs = outs.masked_fill(lses.transpose(-1, -2)[..., None] == -math.inf, math.nan)
    return outs, lses


def tokens(x: Tensor) -> Tensor:
    return x.transpose(-1, -2)[..., None]


def weighted(outs: Tensor, lses: Tensor, sinks: Tensor | None = None, copies: int = 1) -> tuple[Tensor, Tensor]:
    """At once, in float32, as a split-KV kernel does."""
    rows = lses if sinks is None else torch.cat([lses, *[sinks[:, None].expand(lses[:1].shape)] * copies])
    lse = rows.logsumexp(0)
    weights = (lses - lse.nan_to_num(neginf=0.0)).exp()
    counted = outs.float().masked_fill(tokens(lses) == -math.inf, 0.0)
    return (tokens(weights) * counted).sum(0).to(outs.dtype), lse


def one_by_one(outs: Tensor, lses: Tensor, between: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Add one partial after the other to a running out and lse, as a ring does."""
    out, lse = torch.zeros_like(outs[0], dtype=between), torch.full_like(lses[0], -math.inf)
    for block, block_lse in zip(outs, lses, strict=True):
        new = torch.logaddexp(lse, block_lse)
        old, add = (torch.exp(x - new.nan_to_num(neginf=0.0)) for x in (lse, block_lse))
        block = block.float().masked_fill(tokens(block_lse) == -math.inf, 0.0)
        out, lse = (tokens(old) * out.float() + tokens(add) * block).to(between), new
    return out.to(outs.dtype), lse


def to_base_2(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = weighted(outs, lses * math.log(2))
    return out, lse / math.log(2)


@pytest.mark.stress(4, "dtype", "spread")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1.0, 10.0, 60.0])
def test_healthy_merges_pass(dtype: torch.dtype, spread: float) -> None:
    for seed in range(2):
        given = partials(dtype, spread=spread, seed=seed)
        assert 0 < max(accuracy.assert_merge_close(weighted, *given).values()) <= 1
        accuracy.assert_merge_close(one_by_one, *given)
        accuracy.assert_merge_close(to_base_2, *given, base=2)
        sinks = torch.randn(3)
        accuracy.assert_merge_close(weighted(*given, sinks), *given, sinks=sinks)
    strided = given[0].transpose(2, 3).contiguous().transpose(2, 3)
    accuracy.assert_merge_close(weighted, strided, given[1])
    accuracy.assert_merge_close(weighted(*given)[0], [*given[0]], [*given[1]])


def test_a_merge_that_keeps_16_bits_passes_where_it_says_so() -> None:
    outs, lses = partials(torch.bfloat16)
    found = one_by_one(outs, lses, torch.bfloat16)
    accuracy.assert_merge_close(found, outs, lses, between="stored")
    unmerged("out is merged wrong", found, outs, lses)


@pytest.mark.filterwarnings("ignore:.*jit:DeprecationWarning")
@pytest.mark.parametrize("place", ["ring_flash_attn/utils.py", "yunchang/ring/utils.py"])
@pytest.mark.parametrize("spread", [1.0, 20.0])
def test_published_merges_pass(place: str, spread: float) -> None:
    package = importlib.util.find_spec(place.partition("/")[0])  # whose own __init__ wants flash-attn
    if package is None or package.origin is None:
        pytest.skip(f"{place.partition('/')[0]} is not installed")
    merge = runpy.run_path(str(Path(package.origin).parents[1] / place))["update_out_and_lse"]
    outs, lses = partials(torch.bfloat16, empty=False, spread=spread)
    out: Any = None
    lse: Any = None
    for block, block_lse in zip(outs, lses, strict=True):
        out, lse = merge(out, lse, block, block_lse)
    accuracy.assert_merge_close((out.to(torch.bfloat16), lse.squeeze(-1).transpose(-1, -2)), outs, lses)


def test_torch_s_merge_passes() -> None:
    module = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")
    merger = module._SDPAMerger(True, 2)
    outs, lses = partials(torch.bfloat16, empty=False)
    for block, block_lse in zip(outs.transpose(2, 3), lses, strict=True):  # (B, H, S, D)
        merger.step(block, block_lse, False)
    out, lse = merger.results()
    accuracy.assert_merge_close((out.transpose(1, 2), lse), outs, lses)


def infinite(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    return weighted(outs.nan_to_num(), lses.masked_fill(lses == -math.inf, 0.0))


WRONG: dict[str, tuple[Merge, dict[str, Any], str]] = {
    "base 2 as natural": (weighted, {"base": 2}, "lse to the base 2 is read as natural"),
    "natural as base 2": (to_base_2, {}, "lse is read as to the base 2"),
    "an empty one has a weight": (infinite, {}, "a partial without keys has a weight of its own"),
    "nan of an empty one": (lambda outs, lses: (outs.sum(0), lses.logsumexp(0)), {}, "out is merged wrong"),
    "equal weights": (lambda outs, lses: (outs.nan_to_num().mean(0), lses.logsumexp(0)), {}, "equal weights"),
    "the last is left out": (lambda outs, lses: weighted(outs[:-1], lses[:-1]), {}, "partial 4 is left out"),
    "lse off": (lambda outs, lses: (weighted(outs, lses)[0], lses.amax(0)), {}, "lse is merged wrong"),
    "another shape": (lambda outs, lses: weighted(outs.transpose(2, 3), lses.transpose(2, 3)), {}, "has the shape"),
    "the sink twice": (lambda outs, lses: weighted(outs, lses, SINKS, 2), {"sinks": torch.ones(3)}, "counted 2 times"),
    "no sink": (weighted, {"sinks": torch.ones(3)}, "the sink is not counted"),
}  # fmt: skip
SINKS = torch.ones(3)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_merge_is_named(name: str) -> None:
    merge, how, says = WRONG[name]
    unmerged(says, merge, *partials(torch.bfloat16, spread=2.0), **how)
