import json
from pathlib import Path

import pytest
import torch

from accuracy.config.find import sources
from experiments.probe.__main__ import COMMAND, main
from tests import planting
from tests.command_line import line_of

QUICK = ["kernel=eager,flash_attn", "question=lse_base,scale", "dtype=float32,bfloat16", "device=cpu"]


def test_the_table_has_every_answer_and_every_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    knobs = "compute_dtype=accumulate, probability_dtype=input, tf32=False"
    assert f"eager ({knobs})\n  lse base  e\n  scale     honoured" in out
    assert "flash_attn (deterministic=True)\n  not here: kernel flash_attn needs a CUDA device" in out


def test_json_holds_the_numbers_behind_the_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "probe" / "some-cpu" / "probe.json"
    assert main([*QUICK, "--json", str(path)]) == 0
    content = json.loads(path.read_text())
    eager, flash = content["kernels"]
    assert eager["answers"]["float32"]["lse_base"] == {
        "text": "e", "details": {"lse_of_64_equal_keys": pytest.approx(4.158883, abs=1e-6)}
    }  # fmt: skip
    assert flash["unsupported"].startswith("kernel flash_attn needs a CUDA device")
    assert content["command"] == " ".join([COMMAND, *QUICK])
    assert str(tmp_path) not in path.read_text()


def test_a_knob_of_a_kernel_is_respected(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["kernel=eager", "question=probability", "dtype=bfloat16", "device=cpu"]
    assert main([*words, "kernel.eager.probability_dtype=float32"]) == 0
    assert "rounded" not in capsys.readouterr().out


def test_a_kernel_of_a_users_folder_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "from accuracy.kernel.eager import Eager\nfrom tests.unit.experiments.probe.faulty import lse_in_base\n"
        "class KERNEL(Eager):\n    def build(self, device):\n        return lse_in_base(2)\n"
    )
    planting.part(tmp_path, "kernel", "mine", code)
    assert main(["--config-dir", str(tmp_path), "kernel=mine", "question=lse_base", "device=cpu"]) == 0
    assert "lse base  2" in capsys.readouterr().out


MISTAKES = (
    ("kernel=egaer", "kernel 'egaer' is unknown; allowed: "),
    ("kernel", "'kernel' cannot be read; write KEY=VALUE"),
    ("kernels=eager", "key 'kernels' is unknown; allowed: device, dtype, kernel, question; did you mean kernel?"),
    ("kernel.eager.tf3=true", "'tf3' is unknown"),
    ("kernel.eager.tf32=perhaps", "kernel.eager.tf32='perhaps'; allowed: a valid boolean"),
    ("kernel.nope.x=1", "kernel 'nope' is unknown"),
    ("device=cuda", "device=cuda, but torch sees no CUDA device"),
    ("kernel=eager device=cpu question=scale --json /dev/null/probe.json", "/dev/null"),
)


def test_a_mistake_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for words, told in MISTAKES:
        assert main(words.split()) == 2
        assert told in line_of(capsys, COMMAND)


def test_every_kernel_on_disk_is_asked_by_default() -> None:
    assert {"eager", "torch_flash", "flash_attn"} <= set(sources("kernel"))
    assert "auto" not in sources("kernel")
