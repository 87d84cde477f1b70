from pathlib import Path

import pytest

from accuracy.cli.report import main
from tests.report.synthetic import Shape, write_run


def test_it_prints_the_path_and_three_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", Shape(variants=("ring",), dtypes=("bfloat16",), tensors=("out",)))
    assert main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(folder / "report.html")
    assert len(lines) == 4


@pytest.mark.parametrize("kind", ["missing", "empty", "a file", "broken table"])
def test_a_folder_without_a_table_gets_one_line_and_status_two(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "run"
    if kind == "a file":
        given.write_text("")
    elif kind != "missing":
        given.mkdir()
    if kind == "broken table":
        (given / "results.parquet").write_text("no parquet")
    assert main([str(given)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    broken = ("has a damaged file", "repeat the run's command")
    for part in (str(given), *(broken if kind == "broken table" else ("expected a run folder", "give the output_dir"))):
        assert part in captured.err
    assert not (tmp_path / "run" / "report.html").exists()
