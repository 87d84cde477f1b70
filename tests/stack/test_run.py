import json

import pandas as pd
import pytest

from accuracy.cli import INTERRUPTED, USAGE_ERROR, publish, report
from accuracy.measurement.pipeline import Pipeline
from accuracy.results import cell, run_table, table
from tests.command_line import CommandLine
from tests.measuring import COSTS
from tests.report import page_check

ALONE = ("problem.seqlen=16", "problem.heads=2", "problem.heads_kv=1", "problem.head_dim=4", "kernel=eager",
         "device=cpu", "variant=ring", "world_size=[2,4]")  # fmt: skip
STACK = (*ALONE, "stack.layers=2", "stack.width=8", "stack.vocabulary=16")
MIXED = ("dtype=[bfloat16,float64]", "reference.folder=null")
MISTAKES = (
    ("+stack.depth=3", "stack key 'depth' is unknown; allowed: "),
    ("stack.layers=-1", "stack.layers=-1; allowed: greater than or equal to 1"),
    ("stack.weights=llama", "stack.weights 'llama' is unknown; allowed: random, trained"),
    ("stack.gain=0", "stack.gain=0; allowed: greater than 0"),
    ("stack.residual=float8", "stack.residual 'float8' is unknown; allowed: accumulate, all, input, none"),
    ("stack.norm=yes_please", "stack.norm='yes_please'; allowed: "),
    ("stack.weights=trained", "trained in another shape; use stack.width=64, "),
    ("inputs=peaked", "inputs has no say in a stack"),
    ("problem.seqlen_q=8", "problem.seqlen_q has no place in a stack"),
    ("world=processes", "world=processes has no stacks; use world=simulated"),
    ("variant=split_kv world_size=1", "variant split_kv gives no gradients; use one with a backward"),
    ("reruns.repeat=1", "reruns and conditions are of attention alone"),
    ("problem.head_dim=3", "RoPE turns pairs: problem.head_dim=3 is odd"),
    ("stack.width=16777216 stack.layers=100", "GiB of cpu memory"),
    ("problem.seqlen=18 world_size=4", "problem.seqlen=18 does not divide into 4 equal parts"),
)


def test_a_mistake_is_one_line_and_nothing_is_written(accuracy: CommandLine) -> None:
    for words, told in MISTAKES:
        answer = accuracy(*STACK, *words.split())
        assert (answer.status, answer.err.count("\n"), told in answer.err) == (USAGE_ERROR, 1, True), answer
    assert not (accuracy.folder / "outputs").exists()


def test_a_run_is_resumed_where_it_was_killed(accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*STACK, "output_dir=run", "report=false")
    assert accuracy(*words).status == 0
    folder = accuracy.folder / "run"
    first, second = sorted((folder / "results").glob("*.parquet"))
    second.unlink()
    before = first.stat().st_mtime_ns
    assert accuracy(*words).status == 0
    assert (first.stat().st_mtime_ns, second.exists()) == (before, True)

    def stopped(*given: object) -> None:
        raise KeyboardInterrupt

    second.unlink()
    monkeypatch.setattr(Pipeline, "measure", stopped)
    assert accuracy(*words).status == INTERRUPTED
    assert json.loads((folder / "run.json").read_text())["ended"] is None
    assert first.exists()


def test_the_report_of_stacks_and_attention_alone_is_the_same_again_from_the_tables_and_published(
    accuracy: CommandLine,
) -> None:
    answer = accuracy(*STACK, *MIXED, "+also.alone.stack.layers=0", "stack.gain=[1,4]", "output_dir=run")
    assert answer.status == 0
    assert "dx of layer 1, deepest stack" in answer.out
    folder = accuracy.folder / "run"
    rows = table.read_results(folder)
    stacks = table.in_stacks(rows)
    assert set(rows[stacks]["tensor"]) == set(table.TENSORS_OF_STACKS)
    assert set(rows[~stacks]["tensor"]) == set(table.TENSORS)
    page = (folder / "report.html").read_text()
    for text in ("gain 1.00", "gain 4.00", 'id="explorer"'):
        assert text in page
    assert page_check.external_loads(page) == []
    assert page_check.charts_without_text(page) == []
    assert page_check.repeated_identifiers(page) == set()
    assert report.main([str(folder)]) == 0
    assert (folder / "report.html").read_text() == page
    target = publish.publish(folder, accuracy.folder / "reports")
    assert len(table.read_results(target)) == len(rows)
    assert report.main([str(target)]) == 0


def test_the_gate_reads_the_rows_of_attention_alone_and_several_workers_have_the_digits_of_one(
    accuracy: CommandLine,
) -> None:
    words = (*MIXED, "threads=1", "report=false")
    assert accuracy(*ALONE, *words, "output_dir=alone").status == 0
    tables = []
    for workers in (1, 2):
        folder = accuracy.folder / f"by_{workers}"
        stacked = (*STACK, "+also.alone.stack.layers=0", *words)
        assert accuracy(*stacked, f"workers={workers}", f"output_dir={folder}").status == 0
        rows = table.read_results(folder).drop(columns=COSTS)
        tables.append(rows.sort_values(["case_id", "layer", "tensor", "rank"], ignore_index=True))
    assert table.in_stacks(tables[0]).any()
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    mixed, expected = (run_table.read_run(accuracy.folder / name) for name in ("by_1", "alone"))
    assert sorted(mixed.planned) == sorted(expected.planned)
    assert set(cell.measured(mixed)) == set(cell.measured(expected))
