"""A real run of the command: healthy against its baseline, then with the kernel itself made worse."""

import shutil
from pathlib import Path

import pytest
import torch

from accuracy.cli import check
from accuracy.kernel.eager import Eager
from accuracy.results import storage, table
from tests.command_line import TINY, CommandLine

OWN = (*TINY, "device=cpu", "workers=1", "kernel=eager", "variant=ulysses", "dtype=float32", "world_size=2",
       "seed=[0,1,2,3]")  # fmt: skip


def published(run: Path, to: Path) -> Path:
    to.mkdir()
    storage.write_table(storage.lean_results(table.read_results(run), every_digit=True), to / "results.parquet")
    shutil.copy(run / "run.json", to)
    storage.write_sums(to)
    return to


def test_an_own_kernel_that_casts_inside_fails_though_single_device_has_it_too(
    accuracy: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """q and v in bfloat16 inside a float32 kernel: thousands of times the error, on both sides of every ratio."""
    assert accuracy(*OWN, "output_dir=good").status == 0
    baseline = published(accuracy.folder / "good", tmp_path / "baseline")
    again = str(accuracy.folder / "good"), "--baseline", str(baseline), "--require-baseline"
    assert check.main(again) == 0
    assert "identical" in capsys.readouterr().out
    healthy = Eager._forward

    def casting(self, q, k, v, how):
        q, v = (x.to(torch.bfloat16).to(x.dtype) for x in (q, v))
        return healthy(self, q, k, v, how)

    monkeypatch.setattr(Eager, "_forward", casting)
    assert accuracy(*OWN, "output_dir=bad").status == 0
    bad = str(accuracy.folder / "bad")
    capsys.readouterr()
    assert check.main([bad, "--baseline", str(baseline), "--require-baseline"]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert "no single device in the matrix: judged by the rounding floor" in first
    assert "error over the rounding floor +" in first
    assert check.main([bad]) == 1  # and without a baseline: beyond what float32 rounds
