"""A training run is captured and judged: healthy ones are called so, faults are found in their layer and tensor."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import accuracy
from accuracy.cli import judge as command
from accuracy.live.reduce import reduce
from tests.live import model as small
from tests.live.model import Model, attend, step


def captured(folder: Path, *functions: Callable[..., Any], dtype: torch.dtype, steps: int = 3, **how: Any) -> Path:
    model = Model(*functions).to(dtype)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    named = [f"{small.NAMED}{function.__name__}" for function in dict.fromkeys(functions)]
    for number in range(steps):
        with accuracy.capture(model, folder, functions=named, **how):
            step(model, optimiser, number)
    return folder


@pytest.mark.stress(2, "dtype")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_healthy_run_is_called_healthy(tmp_path: Path, dtype: torch.dtype) -> None:
    found = accuracy.judge(captured(tmp_path, attend, attend, dtype=dtype))
    assert found.healthy, found.sentence
    assert "merely rounds: 2 layers, 6 calls" in found.sentence
    assert set(found.rows["tensor"]) == {"out", "lse", "dq", "dk", "dv"}
    found.raise_if_faulty()


def test_an_attention_that_was_given_nan_is_not_accused(tmp_path: Path) -> None:
    model = Model(attend, attend).to(torch.float32)
    with torch.no_grad():
        next(model.blocks[1].parameters())[3, 2] = torch.nan
    with accuracy.capture(model, tmp_path, functions=[f"{small.NAMED}attend"]):
        step(model, torch.optim.SGD(model.parameters(), lr=0.1), 0)
    found = accuracy.judge(tmp_path)
    assert not found.healthy
    assert found.sentence.startswith("blocks.1.attention in step 0 was given q with")
    assert "before the attention" in found.sentence
    assert "leaves rounding" not in found.sentence


FAULTS = {
    "a wrong scale in one layer": (small.attend_at_another_scale, "out", "logic"),
    "a mask that leaks at a border": (small.attend_leaking, "out", "logic"),
    "an lse in bfloat16": (small.attend_with_short_lse, "lse", "precision_floor"),
    "a race": (small.attend_racing, "dk", "logic"),
}


@pytest.mark.stress(4, "name", "dtype")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_in_its_layer_and_its_first_tensor(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    function, tensor, label = FAULTS[name]
    small.Late.times = 0
    found = accuracy.judge(captured(tmp_path, attend, function, attend, dtype=dtype))
    first = found.judged.first
    assert first is not None
    assert (first["layer"], first["tensor"], found.judged.label) == ("blocks.1.attention", tensor, label)
    assert "2 other layers merely round" in found.sentence
    if function is small.attend_leaking:
        assert first["worst_token"] == small.DOCUMENTS[0]
        assert "no rounding explains, proven wrong" in found.sentence
    if function is small.attend_racing:
        assert "step 2" in found.sentence
        assert "in 1 of 3 captured steps" in found.sentence.lower()
    with pytest.raises(AssertionError, match=r"blocks\.1"):
        found.raise_if_faulty()
    reduced = reduce(tmp_path)  # and a row of it shows the fault alone
    assert (reduced.tensor, reduced.label) == (tensor, label)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(reduced.path))
    assert ended.value.code


def test_the_command_says_the_sentence_and_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = captured(tmp_path, attend, small.attend_leaking, dtype=torch.float32, steps=1)
    assert command.main([str(folder)]) == command.FAULTY
    said = capsys.readouterr().out
    assert said.startswith("out of blocks.1.attention in step 0 leaves rounding first (logic): ")
    page = (folder / "report.html").read_text()
    assert "What left rounding, in the order in which it was computed" in page
    assert len((folder / "judge.csv").read_text().splitlines()) == 1 + 2 * 5 * 2
    assert command.main([str(folder), "--layers", "*.0"]) == 0


def test_without_gradients_the_forward_is_judged(tmp_path: Path) -> None:
    model = Model(attend, attend)
    with torch.no_grad(), accuracy.capture(model, tmp_path, functions=[attend]):
        model(torch.zeros(1, sum(small.DOCUMENTS), dtype=torch.long))
    found = accuracy.judge(tmp_path)
    assert found.healthy
    assert set(found.rows["tensor"]) == {"out", "lse"}


def test_what_has_dropout_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(1, 2, 8, 16)
    with accuracy.capture(None, tmp_path):
        torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    accuracy.capture.wait()
    assert command.main([str(tmp_path)]) == command.NOTHING_MEASURED
    assert "dropout 0.5 was on" in capsys.readouterr().out
