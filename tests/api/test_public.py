import ast
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest

import accuracy
from accuracy.core.paths import PACKAGE
from accuracy.results import glossary
from accuracy.results.table import RESULTS_SCHEMA
from tests.api.test_measure import SMALL, bshd
from tests.processes import python

mpl.use("agg")
pytestmark = pytest.mark.xdist_group("measure")


def wrong_backward(q, k, v, **how):
    return bshd(q.detach() + 1.1 * (q - q.detach()), k, v, **how)


@pytest.fixture(scope="module")
def both() -> pd.DataFrame:
    return accuracy.measure([bshd, wrong_backward], dtype="float32", seed=[0, 1, 2], **SMALL)


@pytest.fixture
def healthy(both: pd.DataFrame) -> pd.DataFrame:
    return both[both["variant"] == "bshd"]


@pytest.fixture
def faulty(both: pd.DataFrame) -> pd.DataFrame:
    return both[both["variant"] == "wrong_backward"]


@pytest.fixture(scope="module")
def ring() -> pd.DataFrame:
    return accuracy.measure(["ring", "zigzag"], world_size=[1, 2, 4], **SMALL)


def test_importing_it_and_looking_around_imports_neither_torch_nor_pandas() -> None:
    code = "import accuracy, sys; dir(accuracy); accuracy.ConfigError; print({'torch', 'pandas'} & set(sys.modules))"
    assert python("-c", code).stdout == "set()\n"


def test_every_public_name_is_there_and_a_type_checker_sees_the_same_ones() -> None:
    assert all(getattr(accuracy, name) is not None for name in accuracy.__all__)
    (guarded,) = (node for node in ast.parse(Path(accuracy.__file__).read_text()).body if isinstance(node, ast.If))
    names = {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names == set(accuracy.__all__)
    assert (PACKAGE / "py.typed").exists()


def test_no_folder_of_the_package_has_the_name_of_a_public_function() -> None:
    """Such a folder, once imported, would take the function's place."""
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert not folders & set(accuracy.__all__)


def test_of_two_functions_the_tensor_that_got_worse_is_named_and_tables_without_a_common_cell_are_refused(
    healthy: pd.DataFrame, faulty: pd.DataFrame, ring: pd.DataFrame
) -> None:
    found = accuracy.compare(healthy, faulty)
    labels = dict(zip(found["tensor"], found["label"], strict=True))
    assert labels["dq"] == "regression"
    assert (labels["dk"], labels["dv"]) == ("identical", "identical")
    assert found.loc[found["tensor"] == "dq", "ratio"].item() > 1e4
    assert found.attrs["across"]["variant"] == ("bshd", "wrong_backward")
    other = accuracy.compare(faulty, healthy)
    assert dict(zip(other["tensor"], other["label"], strict=True))["dq"] == "improved"
    with pytest.raises(ValueError, match="share no measured cell"):
        accuracy.compare(healthy, ring)


@pytest.mark.stress
def test_a_faulty_function_is_diagnosed_and_raises() -> None:
    small = {"seqlen": 48, "heads": 2, "heads_kv": 1, "head_dim": 16, "device": "cpu"}
    found = accuracy.diagnose(wrong_backward, **small)
    assert found.sentence.startswith("dq is wrong at any precision")
    of_dq = found.verdicts[(found.verdicts["tensor"] == "dq") & (found.verdicts["seqlen"] == 48)]
    assert set(of_dq["label"]) == {"logic", "not_measured"}  # a window that the function does not have
    with pytest.raises(AssertionError, match="dq is wrong at any precision"):
        found.raise_if_faulty()


def test_a_function_with_a_scale_of_its_own_is_diagnosed_at_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("accuracy.api.diagnose.execute", lambda request, _: asked.append(request["problem"]) or 1 / 0)
    for fn in (lambda q, k, v, causal: bshd(q, k, v, causal=causal, softmax_scale=q.shape[-1] ** -0.5), bshd):
        with pytest.raises(ZeroDivisionError):
            accuracy.diagnose(fn)
    assert [problem["softmax_scale"] for problem in asked] == [None, 0.2]  # type: ignore[index]


def test_a_table_is_diagnosed_as_it_is_and_a_case_that_raised_everywhere_raises(healthy: pd.DataFrame) -> None:
    accuracy.diagnose(healthy).raise_if_faulty()
    with pytest.raises(AssertionError, match="not here"):
        accuracy.diagnose(healthy[:1].assign(status="failed", tensor=None, error_rel=None, reason="not here")
                          ).raise_if_faulty()  # fmt: skip
    with pytest.raises(ValueError, match="no rows"):
        accuracy.diagnose(healthy[:0])


def test_growth_draws_a_line_for_each_variant_and_tensor_over_the_world_sizes(ring: pd.DataFrame) -> None:
    axes = accuracy.plot.growth(ring, tensor=["out", "dq"], value="x_single_device")
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    assert set(lines) == {"ring out", "ring dq", "zigzag out", "zigzag dq"}
    assert list(lines["ring dq"].get_xdata()) == [1, 2, 4]
    rows = ring[(ring["variant"] == "ring") & (ring["tensor"] == "dq") & (ring["rank"] == -1)]
    assert list(lines["ring dq"].get_ydata()) == pytest.approx(rows["x_single_device"].tolist())


def test_by_rank_draws_the_ranks_of_the_largest_world(ring: pd.DataFrame) -> None:
    axes = accuracy.plot.by_rank(ring, tensor="dk")
    assert [list(line.get_xdata()) for line in axes.get_lines()] == [[0, 1, 2, 3]] * 2


def test_heatmap_has_a_number_for_each_setting_and_tensor_in_the_axes_that_were_given(ring: pd.DataFrame) -> None:
    from matplotlib.figure import Figure

    given = Figure().subplots()
    axes = accuracy.plot.heatmap(ring, ax=given)
    assert axes is given
    assert len(axes.texts) == 6 * 6
    with pytest.raises(ValueError, match=r"'x_singl' is unknown.*x_single_device"):
        accuracy.plot.heatmap(ring, value="x_singl")


def test_the_glossary_has_every_column_of_the_table_and_readme_has_the_glossary() -> None:
    assert list(accuracy.columns().index) == RESULTS_SCHEMA.names
    assert accuracy.columns()["meaning"].str.len().min() > 5
    page = PACKAGE.parent / "README.md"
    assert glossary.markdown() in page.read_text(), "python -m accuracy.results.glossary README.md"
