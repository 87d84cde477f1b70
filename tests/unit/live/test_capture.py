"""What a capture holds is what the model's attention took and returned; nothing else of the run changes; and it is
measured again under any variant, with every shape from the files."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from accuracy.config.read import problem_of
from accuracy.core.case import Part
from accuracy.core.recording import choose, facts_of, recorded
from accuracy.inputs import captured, drawing
from accuracy.results.table import read_results
from tests.command_line import CommandLine, assert_one_line
from tests.unit.live.model import stack
from tests.unit.live.test_bad_input import facts, written


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


SHAPES = {"q": (1, 8, 2, 4), "k": (1, 8, 1, 4), "v": (1, 8, 1, 4), "dout": (1, 8, 2, 4)}


def call(folder: Path, mask: Tensor | None = None, **how: object) -> Path:
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16
    q, k, v = (torch.randn(1, heads, 24, 16, generator=generator, dtype=dtype).requires_grad_() for heads in (4, 2, 2))
    with accuracy.capture(None, folder):
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True, **how)  # type: ignore[arg-type]
        out.backward(torch.randn(out.shape, generator=generator, dtype=dtype))
    accuracy.capture.wait()
    return folder


def test_the_command_takes_every_shape_and_the_scale_from_the_files(tmp_path: Path, accuracy: CommandLine) -> None:
    folder = call(tmp_path / "attention", is_causal=True, scale=0.3)
    words = ("inputs=captured", f"inputs.captured.path={folder}", "variant=zigzag", "world_size=2", "report=false")
    answer = accuracy(*words, "output_dir=run")
    assert answer.status == 0, answer.err
    rows = read_results(accuracy.folder / "run")
    row = rows[rows["tensor"] == "out"].iloc[0]
    of_problem = row[["batch", "seqlen", "heads", "heads_kv", "head_dim", "mask", "dtype", "softmax_scale"]]
    assert [*of_problem] == [1, 24, 4, 2, 16, "causal", "bfloat16", 0.3]
    assert set(rows["status"]) == {"ok"}


def test_replay_of_a_layer_of_two_ranks_is_of_the_whole_sequence(tmp_path: Path) -> None:
    for rank in (0, 1):
        written(tmp_path, facts(ranks=(0, 1), rank=rank, shapes=SHAPES, causal=True, sharding="zigzag"))
    rows = accuracy.measure(
        ["single_device", "ring"], world_size=[1, 2], inputs={"captured": {"path": str(tmp_path)}}, dtype="float64"
    )
    assert {*rows["seqlen"]} == {16}
    assert rows["error_rel"].max() < 1e-14  # float64 of both
    assert {*rows["inputs_options"]} == {f"layer=a@0,path={tmp_path}"}
    part = Part("captured", captured.__name__, (("layer", "a@0"), ("path", str(tmp_path))))
    problem = problem_of(choose(tmp_path, "a").problem)
    assert drawing.draw(part, problem, 0)["q"].shape == (1, 16, 2, 4)


def test_every_call_of_a_folder_is_an_axis_where_all_are_one_problem_with_gradients(accuracy: CommandLine) -> None:
    folder = accuracy.folder / "trained"
    words = ("inputs=captured", f"inputs.captured.path={folder}", "inputs.captured.layer=every", "variant=ring",
             "world_size=2", "dry_run=true")  # fmt: skip
    for step in (0, 10):
        written(folder, facts(step=step, shapes=SHAPES, causal=True))
    answer = accuracy(*words)
    assert answer.status == 0, answer.err
    assert len(re.findall(r"^\w{12}  ring .* world_size 2 ", answer.out, re.MULTILINE)) == 2
    written(folder, facts(step=20, shapes=SHAPES))
    assert_one_line(accuracy(*words), "a@20 is another problem than a@0; choose calls of equal shapes and masks")
    for path in folder.iterdir():
        path.unlink()
    written(folder, facts())
    assert_one_line(accuracy(*words), "a@0 in", "has no gradients, so no dout; capture a step with its backward")


def test_a_mask_tensor_that_words_can_say_is_kept_as_words(tmp_path: Path) -> None:
    distance = torch.arange(24)[:, None] - torch.arange(24)
    for left, right, additive in ((24, 0, False), (5, 0, True), (4, 4, False)):
        seen = (distance <= left) & (distance >= -right)
        added = torch.zeros(24, 24, dtype=torch.bfloat16).masked_fill(~seen, torch.finfo(torch.bfloat16).min)
        folder = call(tmp_path / str(left), (added if additive else seen)[None, None])
        about, window = facts_of(next(folder.glob("*.safetensors"))), None if left == 24 else (left, right)
        assert (about.mask, about.causal, about.window) == ("", right == 0, window)
        assert choose(folder, "call.0").problem["window"] == (window and left)
        assert accuracy.judge(folder).healthy


def test_a_mask_that_no_words_say_stays_and_is_judged(tmp_path: Path) -> None:
    seen = torch.ones(24, 24, dtype=torch.bool).tril()
    seen[:, 3] = False
    seen[3] = False  # a row that sees nothing
    folder = call(tmp_path, seen[None, None])
    assert facts_of(next(folder.glob("*.safetensors"))).mask == "seen"
    assert accuracy.judge(folder).healthy
    with pytest.raises(accuracy.ConfigError, match="has a mask tensor, which no problem says; judge it"):
        accuracy.measure("ring", inputs={"captured": {"path": str(folder)}})
