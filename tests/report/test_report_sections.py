from pathlib import Path

import pytest

from accuracy.report.about import reasons
from accuracy.report.build import answer_of
from accuracy.report.explorer import preset_of
from accuracy.report.folder import Run, read_folder
from accuracy.report.material import material_of
from accuracy.report.matrix import heat_cell
from accuracy.report.published import chosen_world
from accuracy.report.series import Facet, facets_of, with_labels
from tests.report.synthetic import Shape, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    variants, dtypes = ("bpt", "single_device", "striped", "zigzag"), ("float16", "bfloat16")
    shape = Shape(variants, dtypes, (1, 2, 4), tensors=("out", "dq"))
    return read_folder(write_run(tmp_path_factory.mktemp("run"), shape))


def facets(run: Run) -> list[Facet]:
    return facets_of(with_labels(run.results).loc[run.measured.index])


def test_facets_go_from_coarse_to_fine_and_single_device_comes_first(run: Run) -> None:
    assert [facet.label for facet in facets(run)] == ["bfloat16", "float16"]
    assert facets(run)[0].series[0] == "single_device"


def test_a_label_names_what_varies_and_only_that(run: Run) -> None:
    changed = run.results.copy()
    changed.loc[changed["variant"] == "zigzag", "precision"] = "merge=logsumexp"
    changed.loc[changed["seed"] == 2, "seqlen"] = 2048
    changed.loc[changed["dtype"] == "float16", "kernel"] = "eager"
    labelled = with_labels(changed)
    assert set(labelled["series"]) == {"bpt", "single_device", "striped", "zigzag · merge=logsumexp", "ring"}
    assert {"bfloat16 · seqlen 2048 · torch_flash", "float16 · seqlen 1024 · eager"} <= set(labelled["facet"])


def test_kernels_side_by_side_are_lines_of_their_own(run: Run) -> None:
    changed = run.results.copy()
    changed.loc[changed["seed"] == 1, "kernel"] = "eager"
    assert {"zigzag · eager", "zigzag · torch_flash"} <= set(with_labels(changed)["series"])


@pytest.mark.parametrize(("value", "heat"), [(1.0, 0.0), (2.0, 0.5), (0.5, -0.5), (100.0, 1.0), (0.0, -1.0)])
def test_the_colour_is_none_at_one_and_logarithmic(value: float, heat: float) -> None:
    assert heat_cell(value).heat == heat


@pytest.mark.parametrize(("sizes", "chosen"), [([1, 2, 8, 64], 8), ([1, 64, 32], 32), ([1], 1)])
def test_positions_are_shown_where_chunks_are_legible(sizes: list[int], chosen: int) -> None:
    assert chosen_world(sizes) == chosen


def test_reasons_are_grouped_with_failures_first(tmp_path: Path) -> None:
    shape = Shape((), reasons=("no float64", "out of memory", "no float64"))
    found = reasons(read_folder(write_run(tmp_path, shape)).cases)
    assert [(reason.heading, reason.reason) for reason in found] == [
        ("1 case failed", "out of memory"),
        ("2 cases unsupported", "no float64"),
    ]
    expected = "accuracy variant=ring kernel=eager inputs=gaussian dtype=float64 world_size=32"
    assert found[0].command.startswith(expected)
    assert found[1].command == ""  # it would be unsupported again


def test_a_run_of_kernels_alone_is_compared_with_the_floor(tmp_path: Path) -> None:
    """Every kernel is its own single device: a ratio of 1 everywhere would say nothing. (Synthetic floors are 0.8.)"""
    shape = Shape(variants=("single_device",), dtypes=("bfloat16",), reasons=())
    run = read_folder(write_run(tmp_path / "kernels", shape))
    labelled = with_labels(run.results)
    preset = preset_of(answer_of(material_of(run)).worst, labelled)
    assert preset is not None
    assert preset.y == "x_floor"
