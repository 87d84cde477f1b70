from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from accuracy.core.case import Part, Variant
from accuracy.kernel import flash_attn
from accuracy.kernel.eager import Eager
from accuracy.simulate.program import simulate
from tests.measuring import case_of, measure, pipeline

SCHEDULE = Part("flash_attn_split", "accuracy.variant.flash_attn_split")


def test_it_asks_the_package_for_its_number_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of ours in flash-attn's place, which sees the arguments and computes by plain products."""
    asked = []

    def with_cache(q, k, v, *, softmax_scale, causal, num_splits, return_softmax_lse):
        asked.append((q.shape[1], k.shape[1], softmax_scale, causal, num_splits, return_softmax_lse))
        return Eager().forward(q, k, v, scale=softmax_scale, causal=causal, out_dtype=q.dtype)

    words = ("problem.seqlen=40", "problem.seqlen_q=3", "problem.softmax_scale=0.25", "device=cpu")
    case = replace(
        case_of("variant=single_device", "world_size=1", *words),
        variant=Variant("split", "contiguous", SCHEDULE, SCHEDULE, (("splits", 4),)),
    )
    shards = [pipeline().targets(case).given.tensors]
    monkeypatch.setattr(flash_attn, "_interface", lambda: SimpleNamespace(flash_attn_with_kvcache=with_cache))
    (results,) = simulate(case, shards, kernel=flash_attn.FlashAttn()).results
    assert asked == [(3, 40, 0.25, True, 4, True)]
    expected = with_cache(*shards[0][:3], softmax_scale=0.25, causal=True, num_splits=0, return_softmax_lse=True)
    assert all(torch.equal(a, b) for a, b in zip(results[:2], expected, strict=True))
    assert results[2:] == (None, None, None)


@pytest.mark.gpu
@pytest.mark.parametrize("heads_kv", [4, 1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_number_of_parts_is_as_right_as_one(dtype: str, heads_kv: int) -> None:
    """Partials are float32: nothing is rounded more often, so the error over single device's stays near 1. 1.5 is the
    gate's rule for more than rounding; a lost part costs hundreds. lse is float32: a few roundings more."""
    words = ("variant=flash_attn_split", "world_size=1", "kernel=flash_attn", f"dtype={dtype}", "problem.seqlen=4096")
    shape = ("problem.seqlen_q=[1,3]", "problem.head_dim=64", f"problem.heads_kv={heads_kv}")
    results = measure(*words, *shape, "variant.flash_attn_split.splits=[0,1,2,7,128]")
    assert not (results["status"] == "failed").any(), results["reason"].unique()
    measured = results[results["status"] == "ok"]
    assert set(measured["tensor"]) == {"out", "lse", "delta"}
    assert measured.loc[measured["tensor"] == "out", "x_single_device"].max() < 1.5
    assert measured.loc[measured["tensor"] == "lse", "error_rel"].max() < 1e-6
