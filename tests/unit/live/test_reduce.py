"""A failing capture shrinks to the few tokens, heads and dims that it takes, and the script shows it alone."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import accuracy
from accuracy.cli import reduce as command
from accuracy.live import script
from accuracy.live.reduce import reduce
from tests.command_line import line_of
from tests.unit.live import model

FAULTY = model.__name__


def captured(folder: Path, name: str, big: str = "", length: int = 48) -> Path:
    generator = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(2, length, heads, 16, generator=generator) for heads in (4, 2, 2, 4))
    if big:
        {"k": k, "v": v}[big][1, 30, 1, 5] = 200.0
        q[..., 5] *= 0.01 if big == "k" else 1.0
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    with accuracy.capture(None, folder, functions=[getattr(model, name)]):
        getattr(model, name)(q, k, v, causal=True, softmax_scale=0.25, group=None)[0].backward(dout)
    accuracy.capture.wait()
    return folder


def shown(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[bool, str]:
    """Whether the script says that the fault is there, and of which tensor."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path))
    return bool(ended.value.code), capsys.readouterr().out.partition(":")[0]


@pytest.mark.parametrize(
    ("name", "big", "tensor", "tokens"),
    [("loses_a_block", "", "out", 17), ("overflows", "v", "out", 1), ("scales_a_gradient", "k", "dk", 2)],
)
def test_a_function_is_run_again_on_ever_less(
    tmp_path: Path, name: str, big: str, tensor: str, tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = captured(tmp_path, name, big)
    found = reduce(folder, fn=f"{FAULTY}:{name}")
    kept: Any = found.kept
    assert found.tensor == tensor
    sizes = [len(each) for each in (kept.batch, kept.heads_kv, kept.heads, kept.tokens, kept.dims)]
    assert sizes == [1, 1, 1, tokens, 1]
    assert not big or (30 in kept.tokens and (kept.batch, kept.heads_kv, kept.dims) == ((1,), (1,), (5,)))
    lines = found.path.read_text().splitlines()
    assert len(lines) <= 30
    assert not any("accuracy" in line for line in lines)
    assert shown(found.path, capsys) == (True, tensor)
    mended = found.path.with_name("mended.py")
    mended.write_text(found.path.read_text().replace(f"import {name} as", "import right as"))
    mended.with_suffix(".safetensors").write_bytes(found.path.with_suffix(".safetensors").read_bytes())
    assert not shown(mended, capsys)[0]
    if big:  # without a function the capture's own rows prove it
        assert command.main([str(folder), "--to", str(tmp_path / "own.py")]) == 0
        assert "1 of 48 rows, proven by the capture itself" in capsys.readouterr().out
        assert shown(tmp_path / "own.py", capsys) == (True, tensor)


def test_a_function_that_takes_any_words_is_given_those_of_the_captured_call(tmp_path: Path) -> None:
    q, k, v = (torch.randn(1, 48, heads, 16) for heads in (4, 2, 2))
    with accuracy.capture(None, tmp_path, functions=[model.attend_at_another_scale]):
        model.attend_at_another_scale(q, k, v, causal=True, scale=0.25, cu_seqlens=torch.tensor([0, 20, 48]))
    kept: Any = reduce(tmp_path, fn=f"{FAULTY}:attend_at_another_scale").kept
    assert len(kept.tokens) == 2  # a single one has the weight 1 at any scale


def test_what_cannot_be_reduced_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = {name: captured(tmp_path / name, name, "v", length=40) for name in ("right", "overflows")}
    for name, words, line in (
        ("right", [], "nothing to reduce: the run merely rounds"),
        ("overflows", ["--fn", f"{FAULTY}:right"], f"{FAULTY}:right merely rounds what was captured"),
        ("overflows", ["--fn", f"{FAULTY}:refuses"], "does not run, or returns no out, on what was captured"),
        ("overflows", ["--fn", "nobody:knows"], "fn=nobody:knows cannot be loaded"),
        ("overflows", ["--to", "/proc/x.py"], "/proc/x.py cannot be written"),
        ("overflows", ["--layer", "call.7"], "call.7 is not in "),
    ):
        assert command.main([str(folders[name]), *words]) == 2
        assert line in line_of(capsys, "accuracy reduce")


def test_no_code_of_a_layer_s_name_runs_with_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two lines of a file may say its encoding, and an encoding may make a line's end of other letters."""
    folder, made, write = captured(tmp_path, "overflows", "v"), tmp_path / "made", script.write
    for name in ("coding: unicode_escape\\n{}", "coding: raw_unicode_escape\\u000a{}", "'''\n{}", "\r{}"):
        layer = f"out of {name.format(f'open({str(made)!r}, {chr(39)}w{chr(39)}).close() #')}"
        monkeypatch.setattr(script, "write", lambda path, what, *rest, layer=layer: write(path, layer, *rest))
        with pytest.raises(SystemExit):
            runpy.run_path(str(reduce(folder).path))
        assert not made.exists()
