import ast
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

import accuracy
from accuracy.core.paths import PACKAGE
from accuracy.results import glossary
from accuracy.results.table import RESULTS_SCHEMA
from tests.processes import python
from tests.slow.foreign.functions import eager_out
from tests.unit.api.test_measure import SMALL

mpl.use("agg")
pytestmark = pytest.mark.xdist_group("measure")


def wrong_backward(q, k, v, **how):
    return eager_out(q.detach() + 1.1 * (q - q.detach()), k, v, **how)


@pytest.fixture(scope="module")
def healthy() -> pd.DataFrame:
    return accuracy.measure(eager_out, dtype="float32", seed=[0, 1, 2], **SMALL)


@pytest.fixture(scope="module")
def ring() -> pd.DataFrame:
    return accuracy.measure(["ring", "zigzag"], world_size=[1, 2, 4], **SMALL)


LOOKING = """
import sys, accuracy
dir(accuracy), accuracy.ConfigError
print({"torch", "pandas"} & set(sys.modules))
import torch
x = torch.randn(1, 8, 2, 4)
accuracy.assert_close(torch.nn.functional.scaled_dot_product_attention, x, x, x, layout="bhsd")
print({"pandas", "hydra", "pyarrow", "matplotlib"} & set(sys.modules))
"""


def test_importing_it_imports_neither_torch_nor_pandas_and_assert_close_needs_torch_alone() -> None:
    assert python("-c", LOOKING).stdout == "set()\nset()\n"


def test_every_public_name_is_there_for_a_type_checker_too_and_no_folder_takes_its_place() -> None:
    (guarded,) = (node for node in ast.parse(Path(accuracy.__file__).read_text()).body if isinstance(node, ast.If))
    names = {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names == set(accuracy.__all__)
    assert all(getattr(accuracy, name) is not None for name in names)
    assert (PACKAGE / "py.typed").exists()
    assert not names & {path.name for path in PACKAGE.iterdir() if path.is_dir()}


def test_of_two_functions_the_tensor_that_got_worse_is_named_and_tables_without_a_common_cell_are_refused(
    healthy: pd.DataFrame, ring: pd.DataFrame
) -> None:
    faulty = accuracy.measure(wrong_backward, dtype="float32", seed=[0, 1, 2], **SMALL)
    found = accuracy.compare(healthy, faulty).set_index("tensor")
    assert found["label"][["dq", "dk", "dv"]].tolist() == ["regression", "identical", "identical"]
    assert found.loc["dq", "ratio"] > 1e4
    assert found.attrs["across"]["variant"] == ("eager_out", "wrong_backward")
    assert accuracy.compare(faulty, healthy).set_index("tensor").loc["dq", "label"] == "improved"
    with pytest.raises(ValueError, match="share no measured cell"):
        accuracy.compare(healthy, ring)


def test_a_function_with_a_scale_of_its_own_is_diagnosed_at_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(
        "accuracy.api.diagnose.execute", lambda request, *_, **__: asked.append(request["problem"]) or 1 / 0
    )
    for fn in (lambda q, k, v, causal: q, eager_out):
        with pytest.raises(ZeroDivisionError):
            accuracy.diagnose(fn)
    assert [problem["softmax_scale"] for problem in asked] == [None, 0.2]  # type: ignore[index]


def test_a_table_is_diagnosed_as_it_is_and_a_case_that_raised_everywhere_raises(healthy: pd.DataFrame) -> None:
    accuracy.diagnose(healthy).raise_if_faulty()
    failed = healthy[:1].assign(status="failed", tensor=None, error_rel=None, reason="not here")
    with pytest.raises(AssertionError, match="not here"):
        accuracy.diagnose(failed).raise_if_faulty()
    with pytest.raises(ValueError, match="no rows"):
        accuracy.diagnose(healthy[:0])


def lines_of(axes: Axes) -> dict[str, Line2D]:
    return {str(line.get_label()): line for line in axes.get_lines() if line.get_marker() != "None"}


def test_plots_have_a_line_or_a_number_for_each_setting_and_tensor(ring: pd.DataFrame) -> None:
    axes = accuracy.plot.growth(ring, tensor=["out", "dq"])
    lines = lines_of(axes)
    assert set(lines) == {"ring out", "ring dq", "zigzag out", "zigzag dq"}
    rows = ring[(ring["variant"] == "ring") & (ring["tensor"] == "dq") & (ring["rank"] == -1)]
    assert list(lines["ring dq"].get_xdata()) == [1, 2, 4]
    assert list(lines["ring dq"].get_ydata()) == pytest.approx(rows["x_single_device"].tolist())
    axes = accuracy.plot.by_rank(ring, tensor="dk")  # of the largest world
    assert [list(line.get_xdata()) for line in lines_of(axes).values()] == [[0, 1, 2, 3]] * 2
    given = mpl.figure.Figure().subplots()
    assert accuracy.plot.growth(ring, ax=given) is given
    with pytest.raises(ValueError, match="has no column inputs"):
        accuracy.summary(ring.drop(columns="inputs"))
    with pytest.raises(ValueError, match=r"'x_singl' is unknown.*x_single_device"):
        accuracy.plot.growth(ring, value="x_singl")


def test_the_glossary_has_every_column_of_the_table_and_its_page_has_the_glossary() -> None:
    assert list(accuracy.columns().index) == RESULTS_SCHEMA.names
    assert accuracy.columns()["meaning"].str.len().min() > 5
    page = PACKAGE.parent / "docs" / "columns.md"
    assert glossary.markdown() in page.read_text(), "python -m accuracy.results.glossary docs/columns.md"


NOTEBOOK = PACKAGE.parent / "examples" / "quickstart.ipynb"


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
