"""What a capture holds is what the model's attention took and returned; nothing else of the run changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from accuracy.core.recording import recorded
from tests.unit.live.model import stack


def trained(model: nn.Module, x: Tensor | None = None) -> list[Tensor]:
    x = torch.randn(2, 24, 32, generator=torch.Generator().manual_seed(1)) if x is None else x
    model.zero_grad()
    model(x.requires_grad_()).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def names(folder: Path) -> list[str]:
    accuracy.capture.wait()
    return [each.first.name for each in recorded(folder)]


def test_the_gradients_are_those_of_the_call_and_the_run_is_the_same_to_the_bit(tmp_path: Path) -> None:
    model = stack(None)
    before = trained(model)
    with accuracy.capture(model, tmp_path):
        during = trained(model)
    assert all(map(torch.equal, before, during))
    assert functional.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention
    assert names(tmp_path) == ["0@0"]
    (one,) = recorded(tmp_path)
    held = {name.removeprefix("0."): x for name, x in load_file(one.files[0]).items()}
    assert one.first.causal
    assert {*held} == {"q", "k", "v", "out", "dout", "dq", "dk", "dv"}
    q, k, v = (held[name].transpose(1, 2).requires_grad_() for name in "qkv")
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    gradients = torch.autograd.grad(out, (q, k, v), held["dout"].transpose(1, 2))
    for name, x in zip(("out", "dq", "dk", "dv"), (out, *gradients), strict=True):
        assert torch.equal(x.transpose(1, 2), held[name])


@pytest.mark.parametrize("again", [True, False], ids=["reentrant", "not reentrant"])
def test_a_recomputation_is_not_captured_twice_and_gives_the_gradients(tmp_path: Path, again: bool) -> None:
    model = stack(again, None, again)
    with accuracy.capture(model, tmp_path):
        for _ in range(2):  # micro-batches
            trained(model)
    assert names(tmp_path) == ["0@0", "1@0", "2@0", "0@0#1", "1@0#1", "2@0#1"]
    assert all("dq" in one.first.shapes for one in recorded(tmp_path))
    assert accuracy.judge(tmp_path).healthy


def test_layers_and_steps_are_chosen_and_a_compiled_model_is_compiled_once(tmp_path: Path) -> None:
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    model, counts = stack(None, None, None), []
    for run, steps in ((model, 5), (torch.compile(model, backend=backend, fullgraph=True), 4)):
        folder = tmp_path / str(steps)
        for _ in range(steps):
            with accuracy.capture(model, folder, layers=["0", "*2"], every=2):
                trained(run)
            counts.append(len(compiled))
        assert names(folder) == [f"{layer}@{step}" for step in range(0, steps, 2) for layer in (0, 2)]
        assert accuracy.judge(folder).healthy
    assert counts[-4:] == [0, 1, 1, 1]


def test_what_cannot_be_read_runs_on_and_is_spoken_of_and_a_step_that_raises_is_undone(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 2, 8, 16)  # five dimensions
    said = "scaled_dot_product_attention is not captured: .*no tensor of layout bhsd"
    with pytest.warns(UserWarning, match=said), accuracy.capture(None, tmp_path):
        assert scaled_dot_product_attention(x, x, x).shape == x.shape
    with pytest.warns(UserWarning, match="name what computes attention"), accuracy.capture(None, tmp_path):
        pass
    with pytest.raises(ZeroDivisionError), accuracy.capture(None, tmp_path):
        raise ZeroDivisionError
    assert functional.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_step_on_a_gpu_is_captured_and_healthy(tmp_path: Path, dtype: torch.dtype) -> None:
    """Copies go on their own stream; FlashAttention's kernels compute."""
    model = stack(None, True, False).cuda().to(dtype)
    x = torch.randn(2, 512, 32, device="cuda", dtype=dtype)
    before = trained(model, x)
    with accuracy.capture(model, tmp_path):
        during = trained(model, x)
        x.detach().fill_(torch.nan)  # what was captured is what was there
    assert all(torch.allclose(a, b, atol=1e-2, rtol=1e-2) for a, b in zip(before, during, strict=True))
    assert names(tmp_path) == ["0@0", "1@0", "2@0"]
    found = accuracy.judge(tmp_path)
    assert found.healthy, found.sentence
