"""`measure` as its users call it; and what else `import accuracy` offers: comparing, diagnosing and drawing a table."""

import ast
import json
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from accuracy.config import resolve
from accuracy.core.paths import CONFIGS, PACKAGE
from accuracy.results import glossary
from accuracy.results.table import RESULTS_SCHEMA
from tests.processes import python
from tests.slow.foreign.functions import eager, eager_out, sdpa

mpl.use("agg")
SMALL = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 16, "device": "cpu"}
pytestmark = pytest.mark.xdist_group("measure")


class Module(torch.nn.Module):
    def forward(self, q, k, v, **how):
        return eager_out(q, k, v, **how)


class Named(torch.nn.Module):
    """Without softmax_scale and group, which a module's own call would take."""

    def forward(self, query, key, value, is_causal=True):
        scale = query.shape[-1] ** -0.5
        return eager_out(query, key, value, causal=is_causal, softmax_scale=scale, group=None)


def test_a_stranger_s_function_is_measured_on_one_rank_as_it_is() -> None:
    subjects = [eager, eager_out, lambda q, k, v, **how: eager_out(q, k, v, **how), Module(), Named()]
    calls = ((subjects, {}), (partial(eager_out), {}), (sdpa, {"layout": "bhsd"}))
    rows = [accuracy.measure(fn, **SMALL, **how) for fn, how in calls]
    names = [set(each["variant"]) for each in rows]
    assert names == [{"eager", "eager_out", "lambda", "Module", "Named"}, {"eager_out"}, {"sdpa"}]
    for (name, _), each in pd.concat(rows).groupby(["variant", "case_id"]):
        measured = each[each["status"] == "ok"]
        assert set(measured["tensor"]) >= {"out", "dq", "dk", "dv"}
        assert measured["error_rel"].max() < 2**-7
        assert ("lse" in set(measured["tensor"])) == (name == "eager")


def test_lists_and_arrays_are_axes_and_a_bar_tells_how_far_it_is_where_somebody_wants_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    axes = {"dtype": [torch.float32, "bfloat16"], "seed": np.arange(2)}
    for progress in (True, False):
        rows = accuracy.measure(["ring", eager_out], world_size=np.int64(1), progress=progress, **axes, **SMALL)
        assert ("8/8" in capsys.readouterr().err) == progress
    cases = rows.drop_duplicates("case_id")
    assert len(cases) == 2 * 2 * 2
    assert dict(zip(cases["variant"], cases["world"], strict=True)) == {"ring": "simulated", "eager_out": "processes"}


def test_a_function_without_grouped_heads_is_told_how_to_have_none_and_no_other_failure_is() -> None:
    def ungrouped(q, k, v, *, causal, softmax_scale, group):
        return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale)

    def other_sizes(q, k, v, **how):
        raise RuntimeError("expected 4, 1 but got 4, 0")

    (row,) = accuracy.measure(ungrouped, layout="bhsd", **SMALL).to_dict("records")
    assert row["status"] == "failed"
    assert "q has 4 heads, k and v have 2; heads_kv=4 measures a function that wants as many" in row["reason"]
    rows = accuracy.measure(ungrouped, layout="bhsd", **SMALL | {"heads_kv": 4})
    assert set(rows.loc[rows["tensor"] != "lse", "status"]) == {"ok"}
    (row,) = accuracy.measure(other_sizes, **SMALL | {"heads_kv": 1}).to_dict("records")
    assert row["reason"].startswith("RuntimeError: expected 4, 1 but got 4, 0 (")
    assert "heads" not in row["reason"]


def test_what_the_process_has_set_in_torch_and_hydra_stays_and_the_function_computes_exactly() -> None:
    seen = []

    def watching(q, k, v, **how):
        seen.append((torch.backends.cudnn.allow_tf32, torch.get_num_threads()))
        return eager_out(q, k, v, **how)

    torch.backends.cudnn.allow_tf32 = True
    torch.set_num_threads(2)
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3", job_name="theirs"):
            mine = GlobalHydra.instance().hydra
            resolve._composed.cache_clear()
            accuracy.measure(watching, **SMALL)
            assert GlobalHydra.instance().hydra is mine
            assert compose("config", overrides=["seed=7"]).seed == 7
        assert set(seen) == {(False, 1)}
        assert (torch.backends.cudnn.allow_tf32, torch.get_num_threads()) == (True, 2)
    finally:
        torch.set_num_threads(1)


def test_a_kept_folder_is_gone_on_with_unless_the_function_changed(tmp_path: Path) -> None:
    calls = []

    def counted(q, k, v, **how):
        calls.append(1)
        return eager_out(q, k, v, **how)

    first = accuracy.measure(counted, output_dir=tmp_path / "run", **SMALL)
    number = len(calls)
    calls.clear()  # what a function closes over is its code
    again = accuracy.measure(counted, seed=[0, 1], output_dir=tmp_path / "run", **SMALL)
    assert number == len(calls) > 0  # of the new seed alone
    assert set(again["seed"]) == {0, 1}
    assert accuracy.load(tmp_path / "run")["case_id"].nunique() == 2
    changed = accuracy.measure({"counted": eager_out}, output_dir=tmp_path / "run", **SMALL)
    assert set(changed["code"]).isdisjoint(first["code"])


SCRIPT = """
import logging, multiprocessing, sys
import accuracy

dir(accuracy), accuracy.ConfigError
print("main runs", {"torch", "pandas"} & {*sys.modules})
import torch

x = torch.randn(1, 8, 2, 4)
accuracy.assert_close(torch.nn.functional.scaled_dot_product_attention, x, x, x, layout="bhsd")
print({"pandas", "hydra", "pyarrow", "matplotlib"} & {*sys.modules})
from tests.golden import ring

LOGGERS = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn")]
before = [logger.level for logger in LOGGERS]

def gathered(q, k, v, *, causal, softmax_scale, group):
    return ring.ring(q, k, v, causal=causal, softmax_scale=softmax_scale, group=group)

small = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 16, "device": "cpu", "world_size": 2}
rows = accuracy.measure(gathered, **small)
assert set(rows["rank"]) == {-1, 0, 1}, rows["reason"].tolist()
assert rows["error_rel"].max() < 2**-7
assert [logger.level for logger in LOGGERS] == before
assert multiprocessing.get_start_method(allow_none=True) is None
print("done")
"""


def test_at_two_ranks_a_script_needs_no_guard_and_its_function_runs_in_processes_of_its_own(tmp_path: Path) -> None:
    """They leave torch's loggers and the start method alone. Importing the package imports neither torch nor pandas,
    and assert_close needs torch alone."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python("script.py", folder=tmp_path, HOME=str(tmp_path))
    assert done.stdout == "main runs set()\nset()\ndone\n", done.stdout + done.stderr


def wrong_backward(q, k, v, **how):
    return eager_out(q.detach() + 1.1 * (q - q.detach()), k, v, **how)


@pytest.fixture(scope="module")
def healthy() -> pd.DataFrame:
    return accuracy.measure(eager_out, dtype="float32", seed=[0, 1, 2], **SMALL)


@pytest.fixture(scope="module")
def ring() -> pd.DataFrame:
    return accuracy.measure(["ring", "zigzag"], world_size=[1, 2, 4], **SMALL)


def test_every_public_name_is_there_for_a_type_checker_too_and_no_folder_takes_its_place() -> None:
    (guarded,) = (node for node in ast.parse(Path(accuracy.__file__).read_text()).body if isinstance(node, ast.If))
    names = {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names == set(accuracy.__all__)
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
    def asked(request: Any, *how: Any, **more: Any) -> None:
        raise LookupError(request["problem"]["softmax_scale"])

    monkeypatch.setattr("accuracy.api.diagnose.execute", asked)
    for fn, scale in ((lambda q, k, v, causal: q, None), (eager_out, 0.2)):
        with pytest.raises(LookupError, match=f"^{scale}$"):
            accuracy.diagnose(fn)


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
