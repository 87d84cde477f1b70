from pathlib import Path

import pytest

from accuracy.cli import USAGE_ERROR
from experiments.depth import __main__ as command
from experiments.depth import table
from experiments.depth.measure import Measurer
from tests.command_line import line_of

STACK = (
    "experiment=stack", "problem.seqlen=16", "problem.heads=2", "problem.heads_kv=1", "problem.head_dim=4",
    "device=cpu", "stack.layers=2", "stack.width=8", "stack.vocabulary=16", "variant=ring", "world_size=[2,4]",
)  # fmt: skip
MISTAKES = (
    ("+stack.depth=3", "stack key 'depth' is unknown; allowed: "),
    ("stack.layers=0", "stack.layers=0; allowed: greater than or equal to 1"),
    ("stack.weights=trained", "trained in another shape; use stack.width=64, "),
    ("inputs=peaked", "inputs has no say in a stack"),
    ("world=processes", "world=processes has no stacks; use world=simulated"),
    ("variant=split_kv world_size=1", "variant split_kv gives no gradients; use one with a backward"),
    ("problem.head_dim=3", "RoPE turns pairs: problem.head_dim=3 is odd"),
    ("stack.width=16777216 stack.layers=100", "GiB of cpu memory, "),
    ("experiment=demo", "experiment=demo has no stack; run it by accuracy experiment=demo"),
)


def test_a_mistake_is_one_line_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, part in MISTAKES:
        given = [word for word in STACK if not (words.startswith("experiment=") and word.startswith(("exp", "stack")))]
        assert command.main([*given, *words.split(), f"output_dir={tmp_path / 'run'}"]) == USAGE_ERROR, words
        assert part in line_of(capsys, command.COMMAND), words
        assert not (tmp_path / "run").exists(), words


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*STACK, f"output_dir={tmp_path}"]
    healthy, begun = Measurer.measure, []

    def stopped(self, each):  # type: ignore[no-untyped-def]
        begun.append(each.id)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return healthy(self, each)

    monkeypatch.setattr(Measurer, "measure", stopped)
    with pytest.raises(KeyboardInterrupt):
        command.main(words)
    assert command.main(words) == 0
    assert begun == [begun[0], begun[1], begun[1]]
    rows = table.read(tmp_path)
    assert set(rows["case_id"]) == set(begun)
    assert rows["x_single_device"].notna().all()
