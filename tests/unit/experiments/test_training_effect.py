"""training_effect's own code finds a planted effect and no other, and trains by TransformerEngine's bits."""

import runpy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from accuracy.core.paths import EXPERIMENTS
from accuracy.inputs.drawing import NAMES
from accuracy.runtime.sharding import join
from experiments.depth.attention import Attention
from experiments.training_effect import train as script
from tests.contract.package.driving import case_of, missing, results_of
from tests.real_ranks import RealRanks

pytestmark = pytest.mark.xdist_group("packages")
TABLES = runpy.run_path(str(EXPERIMENTS / "training_effect/tables.py"))
TINY = script.Size("cpu", "eager", 1, 64, 2, 16, 6, 1, 3e-3)
P2P, ONE, AGAIN, PLANTED = "transformer_engine_p2p", "one device", "again", "gradient times 1.05"
RESULTS = ("out", "dq", "dk", "dv")


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 1.05 * gradient


def test_a_planted_factor_of_attention_s_gradients_is_found_and_nothing_else() -> None:
    """One device, one device again, and one device whose attention gives 1.05 times its gradients."""
    attention_of = script.attention_of

    def planted(size: script.Size, way: str) -> Attention:
        attention = attention_of(size, way)
        if way != PLANTED:
            return attention
        return lambda q, k, v: attention(*map(_Scaled.apply, (q, k, v)))

    text = torch.randint(32, 96, (20_000,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "joined", lambda files: text)  # not the package's, which changes with each commit
        patch.setitem(script.SIZES, "tiny", TINY)
        patch.setattr(script, "WAYS", {ONE: script.WAYS[ONE]})
        patch.setattr(script, "attention_of", planted)
        rows = [row for seed in range(3) for way in (ONE, AGAIN, PLANTED) for row in script.trained("tiny", seed, way)]
    by_seed = TABLES["_by_seed"](pd.DataFrame(rows, columns=script.COLUMNS))
    found, none = (TABLES["_difference"](by_seed, "gradient norm", way, ONE) for way in (PLANTED, AGAIN))
    assert found["mean"] > found["least"] > 0.0
    assert none["mean"] == none["least"] == 0.0
    assert by_seed.loc[("gradient error", ONE)].between(2**-12, 2**-5).all()  # rounding's


def watched_steps(size: script.Size, way: str, steps: int) -> list[dict[str, Tensor]]:
    """Train; return what attention got and gave in each layer of each step, in bfloat16."""
    calls: list[dict[str, Tensor]] = []
    attention = script.attention_of(size, way)

    def watched(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = attention(q, k, v)
        call = {"q": q, "k": k, "v": v, "out": out}
        calls.append(call)
        for name, x in {"dq": q, "dk": k, "dv": v, "dout": out}.items():
            x.register_hook(lambda gradient, name=name, call=call: call.update({name: gradient}))
        return out

    torch.manual_seed(0)
    weights = script.beginning(size.layers, size.heads, size.heads, size.head_dim, size.device)
    optimizer = torch.optim.AdamW(weights.values(), lr=size.rate)
    for _ in range(steps):
        words = torch.randint(256, (1, size.tokens + 1)).to(size.device)
        optimizer.zero_grad()
        script.loss(weights, words, watched, size.head_dim).backward()
        optimizer.step()
    return [{name: x.detach().to(torch.bfloat16).cpu() for name, x in call.items()} for call in calls]


def differing(
    ranks: RealRanks, size: script.Size, words: tuple[str, ...], steps: int, folder: Path
) -> dict[str, float]:
    """Train by the twin of the words; return the largest share of elements, of all layers and steps, whose bits are not
    those of TransformerEngine's own code on the same q, k, v and dout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(script.WAYS, "twin", ("variant=te_p2p", *words))
        calls = watched_steps(size, "twin", steps)
    path = folder / "calls.safetensors"
    save_file({f"call_{n}.{name}": call[name].contiguous() for n, call in enumerate(calls) for name in NAMES}, path)
    shape = {"batch": 1, "seqlen": size.tokens, "heads": size.heads, "heads_kv": size.heads, "head_dim": size.head_dim}
    asked = [f"problem.{key}={value}" for key, value in shape.items()]
    asked += [f"device={size.device}", f"kernel={size.kernel}", "dtype=bfloat16", "inputs=captured"]
    asked += [f"inputs.captured.path={path}", *(word for word in words if word.startswith("world_size"))]
    found = dict.fromkeys(RESULTS, 0.0)
    for number, call in enumerate(calls):
        theirs = results_of(ranks, case_of(P2P, *asked, f"inputs.captured.layer=call_{number}"))
        for name in RESULTS:
            whole = join(torch.stack([each[name].cpu() for each in theirs]), "zigzag")
            found[name] = max(found[name], float((whole != call[name]).double().mean()))
    return found


@pytest.mark.skipif(missing(P2P) is not None, reason=str(missing(P2P)))
def test_three_steps_of_training_have_transformer_engine_s_bits(pool: RealRanks, tmp_path: Path) -> None:
    """On four ranks over gloo, where its merge runs as written; another merge shows."""
    size, written = TINY._replace(layers=2), ("world_size=4", "precision.merge=rescaled_twice")
    assert differing(pool, size, written, 3, tmp_path) == dict.fromkeys(RESULTS, 0.0)
    assert differing(pool, size, written[:1], 1, tmp_path)["out"] > 0.0
