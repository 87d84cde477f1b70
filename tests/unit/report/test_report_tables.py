"""Labels of lines and pictures, and the tables of the folded sections."""

import shlex
from pathlib import Path

import pandas as pd
import pytest

from accuracy.report.about import command, reasons
from accuracy.report.explorer import chosen_world, preset_of
from accuracy.report.first_screen import answer as answer_of
from accuracy.report.folder import Run, material_of, read_folder
from accuracy.report.series import facets_of, with_labels
from accuracy.report.worst import INSIDE, gravest
from accuracy.verdict.inside import MARK
from tests.unit.report.synthetic import HOSTILE, Shape, identity, write_run


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return read_folder(folder)


def test_facets_go_from_coarse_to_fine_and_a_label_names_what_varies_and_only_that(run: Run) -> None:
    facets = facets_of(with_labels(run.results).loc[run.measured.index])
    assert [facet["facet"].iloc[0] for facet in facets] == ["bfloat16", "float16"]
    changed = run.results.copy()
    changed.loc[changed["variant"] == "zigzag", "precision"] = "merge=logsumexp"
    changed.loc[changed["seed"] == 1, "seqlen"] = 2048
    changed.loc[changed["dtype"] == "float16", "kernel"] = "eager"
    labelled = with_labels(changed)
    assert set(labelled["series"]) == {"bpt", "single_device", "striped", "zigzag · merge=logsumexp", "ring"}
    assert {"bfloat16 · seqlen 2048 · torch_flash", "float16 · seqlen 1024 · eager"} <= set(labelled["facet"])
    side_by_side = run.results.assign(kernel=run.results["kernel"].mask(run.results["seed"] == 1, "eager"))
    assert {"zigzag · eager", "zigzag · torch_flash"} <= set(with_labels(side_by_side)["series"])


def test_a_label_leaves_out_what_another_word_of_it_tells(run: Run) -> None:
    changed, later = run.results.copy(), run.results["seed"] == 1
    changed.loc[later, ["inputs", "inputs_options"]] = ("peaked", "std=6.0")
    assert {"bfloat16 · gaussian", "bfloat16 · peaked"} <= set(with_labels(changed)["facet"])
    changed.loc[later & (changed["variant"] == "ring"), "inputs_options"] = "std=9.0"
    assert "bfloat16 · peaked · std=9.0" in set(with_labels(changed)["facet"])


def test_a_cell_that_computes_coarser_inside_as_it_may_is_grey_and_any_other_is_marked() -> None:
    row = {"named": "f", "dtype": "float64", "world_size": 1, "tensor": "out", "sentence": ""}
    for numbers, expected in (({MARK: "float32"}, INSIDE), ({}, "precision_floor")):
        (found,) = gravest(pd.DataFrame([{**row, "label": "precision_floor", "numbers": numbers}])).values()
        assert found == expected


def test_positions_are_shown_where_chunks_are_legible() -> None:
    assert [chosen_world(sizes) for sizes in ([1, 2, 8, 64], [1, 64, 32], [1])] == [8, 32, 1]


def test_reasons_are_grouped_with_failures_first_and_kernels_alone_are_compared_with_the_floor(tmp_path: Path) -> None:
    """Every kernel is its own single device: a ratio of 1 everywhere would say nothing. (Synthetic floors are 0.8.)"""
    reasons_given = ("no float64", "out of memory", "no float64")
    run = read_folder(write_run(tmp_path, Shape(("single_device",), ("bfloat16",), reasons=reasons_given)))
    failed, unsupported = reasons(run.cases)
    assert (failed.heading, failed.reason) == ("1 case failed", "out of memory")
    assert (unsupported.heading, unsupported.reason) == ("2 cases unsupported", "no float64")
    assert failed.command.startswith("accuracy variant=ring kernel=eager inputs=gaussian dtype=float64 world_size=32")
    assert unsupported.command == ""  # it would be unsupported again
    assert preset_of(answer_of(material_of(run)).worst)["y"] == "x_floor"


def test_the_command_of_a_row_has_what_is_set_and_a_shell_takes_hostile_text_as_one_word() -> None:
    case = {**identity(Shape(), "bpt", "bfloat16", 8, 0), "precision": "merge=logsumexp", "kernel_options": "tf32=True"}
    text = command({**case, "inputs_options": "scale=None", "softmax_scale": 0.5, "world": "processes"})
    assert {"inputs.gaussian.scale=null", "problem.softmax_scale=0.5", "world=processes"} <= {*shlex.split(text)}
    first, second = pd.DataFrame([{**case, "seed": None}, {**case, "seed": 3.0}]).to_dict("records")
    assert "seed" not in command(first)
    assert "seed=3 " in command(second)
    assert shlex.split(command({**case, "variant": HOSTILE, "options": ""}))[1] == f"variant={HOSTILE}"
