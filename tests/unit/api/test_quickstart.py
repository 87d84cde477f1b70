"""Every cell of the quickstart runs and shows what it says, here without a kernel of its own."""

import ast
import json
from typing import Any

import pytest

from accuracy.core.paths import PACKAGE

NOTEBOOK = PACKAGE.parent / "examples" / "quickstart.ipynb"
pytestmark = pytest.mark.xdist_group("measure")


def run(source: str, space: dict[str, Any]) -> Any:
    """The value of a cell's last line, if that is an expression."""
    *statements, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        return exec(source, space)
    exec(compile(ast.Module(statements, []), "cell", "exec"), space)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), space)


def test_every_cell_of_the_quickstart_runs_and_shows_what_it_says(
    few_grids: None, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    space: dict[str, Any] = {"__name__": "__main__"}
    shown = [run("".join(cell["source"]).replace("%pip", "# %pip"), space) for cell in cells]
    assert "regression" in str(next(each for each in shown if "error_a" in str(each)))
    assert any(hasattr(each, "get_lines") for each in shown)  # a picture
    assert "dq is wrong at any precision" in capsys.readouterr().out
