"""`accuracy stack.layers=L` as a user runs it: rows on disk, resumed, reported; a mistake is one line."""

import json

import pandas as pd
import pytest

from accuracy.cli import publish, report, run
from accuracy.results import layers
from accuracy.stack import measure
from tests.command_line import CommandLine
from tests.report import page_check

STACK = (
    "problem.seqlen=16", "problem.heads=2", "problem.heads_kv=1", "problem.head_dim=4", "kernel=eager", "device=cpu",
    "stack.layers=2", "stack.width=8", "stack.vocabulary=16", "variant=ring", "world_size=[2,4]",
)  # fmt: skip

MISTAKES = {
    "unknown knob": ("+stack.depth=3", "knob of stack 'depth' is unknown; allowed: "),
    "negative layers": ("stack.layers=-1", "stack.layers=-1; allowed: whole numbers from 1"),
    "weights": ("stack.weights=llama", "stack.weights 'llama' is unknown; allowed: random, trained"),
    "gain": ("stack.gain=0", "stack.gain=0.0; allowed: numbers above 0"),
    "residual": ("stack.residual=float8", "stack.residual 'float8' is unknown; allowed: accumulate, input, none"),
    "norm": ("stack.norm=yes_please", "stack.norm='yes_please'; allowed: true or false"),
    "trained shape": ("stack.weights=trained", "trained in another shape; use stack.width=64, "),
    "inputs": ("inputs=peaked", "inputs has no say in a stack"),
    "queries": ("problem.seqlen_q=8", "problem.seqlen_q has no place in a stack"),
    "world": ("world=processes", "world=processes has no stacks; use world=simulated"),
    "odd head": ("problem.head_dim=3", "RoPE turns pairs: problem.head_dim=3 is odd"),
    "memory": ("stack.width=16777216 stack.layers=100", "GiB of cpu memory", "lower stack.layers"),
    "tokens": ("problem.seqlen=18 world_size=4", "problem.seqlen=18 does not divide into 4 equal parts"),
}


@pytest.mark.stress(4)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(name: str, accuracy: CommandLine) -> None:
    words, *told = MISTAKES[name]
    answer = accuracy(*STACK, *words.split())
    assert answer.status == run.USAGE_ERROR
    assert len(answer.err.strip().splitlines()) == 1
    assert all(each in answer.err for each in told)
    assert not (accuracy.folder / "outputs").exists()


def test_a_run_is_resumed_where_it_was_killed(accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert accuracy(*STACK, "output_dir=run").status == 0
    folder = accuracy.folder / "run"
    first, second = sorted((folder / "layers").glob("*.parquet"))
    second.unlink()
    before = first.stat().st_mtime_ns
    assert accuracy(*STACK, "output_dir=run").status == 0
    assert first.stat().st_mtime_ns == before
    assert second.exists()
    assert pd.read_parquet(folder / "layers")["case_id"].nunique() == 2

    def stopped(*given: object) -> None:
        raise KeyboardInterrupt

    second.unlink()
    monkeypatch.setattr(measure.Measurer, "measure", stopped)
    assert accuracy(*STACK, "output_dir=run").status == run.INTERRUPTED
    assert json.loads((folder / "run.json").read_text())["ended"] is None
    assert first.exists()


def test_a_dry_run_prints_the_plan_and_writes_nothing(accuracy: CommandLine) -> None:
    answer = accuracy(*STACK, "dry_run=true")
    assert answer.status == 0
    assert "2 stacks planned, 2 to measure; at most about" in answer.out
    assert "L=2" in answer.out
    assert not list(accuracy.folder.glob("outputs"))


def test_the_report_has_every_setting_and_is_the_same_again_from_the_tables(accuracy: CommandLine) -> None:
    assert accuracy(*STACK, "stack.gain=[1,4]", "output_dir=run").status == 0
    folder = accuracy.folder / "run"
    page = (folder / "report.html").read_text()
    assert "gain 1.00" in page
    assert "gain 4.00" in page
    assert page.count('class="chart"') == 2 * 5  # four tensors by layer, the bottom one by world size
    assert page_check.external_loads(page) == []
    assert page_check.charts_without_text(page) == []
    assert page_check.repeated_identifiers(page) == set()
    assert report.main([str(folder)]) == 0
    assert (folder / "report.html").read_text() == page


def test_a_published_run_of_stacks_is_read_and_reported_again(accuracy: CommandLine) -> None:
    assert accuracy(*STACK, "output_dir=run").status == 0
    target = publish.publish(accuracy.folder / "run", accuracy.folder / "reports")
    assert len(layers.read(target)) == len(layers.read(accuracy.folder / "run"))
    assert report.main([str(target)]) == 0


def test_a_folder_of_attention_alone_takes_no_stacks(accuracy: CommandLine) -> None:
    alone = [word for word in STACK if not word.startswith("stack.")]
    assert accuracy(*alone, "report=false", "reference.folder=null", "output_dir=run").status == 0
    answer = accuracy(*STACK, "output_dir=run")
    assert answer.status == run.USAGE_ERROR
    assert "holds rows of attention alone" in answer.err
