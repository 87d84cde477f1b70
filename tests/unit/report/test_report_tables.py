"""Labels of lines and pictures, and the tables of the folded sections."""

import math
import shlex
from pathlib import Path

import pandas as pd
import pytest

from accuracy.core import number
from accuracy.report.about import command, reasons
from accuracy.report.drift import drift_of
from accuracy.report.explorer import encode_rows, preset_of
from accuracy.report.first_screen import answer as answer_of
from accuracy.report.folder import material_of, read_folder
from accuracy.report.series import with_labels
from accuracy.report.worst import INSIDE, gravest
from accuracy.verdict.growth import Growth, fit_growth
from accuracy.verdict.inside import MARK
from tests.unit.report.page_check import decoded
from tests.unit.report.synthetic import HOSTILE, Shape, identity, write_large_run, write_run
from tests.unit.report.tables import drifted, run_of, shape


def test_a_label_names_what_varies_and_only_that(folder: Path) -> None:
    run = read_folder(folder)
    changed = run.results.copy()
    changed.loc[changed["variant"] == "zigzag", "precision"] = "merge=logsumexp"
    changed.loc[changed["seed"] == 1, "seqlen"] = 2048
    changed.loc[changed["dtype"] == "float16", "kernel"] = "eager"
    labelled = with_labels(changed)
    assert set(labelled["series"]) == {"bpt", "single_device", "striped", "zigzag · merge=logsumexp", "ring"}
    assert {"bfloat16 · seqlen 2048 · torch_flash", "float16 · seqlen 1024 · eager"} <= set(labelled["facet"])
    side_by_side = run.results.assign(kernel=run.results["kernel"].mask(run.results["seed"] == 1, "eager"))
    assert {"zigzag · eager", "zigzag · torch_flash"} <= set(with_labels(side_by_side)["series"])
    told = run.results.copy()  # by another word of the label
    told.loc[told["seed"] == 1, ["inputs", "inputs_options"]] = ("peaked", "std=6.0")
    assert {"bfloat16 · gaussian", "bfloat16 · peaked"} <= set(with_labels(told)["facet"])


def test_a_cell_that_computes_coarser_inside_as_it_may_is_grey_and_any_other_is_marked() -> None:
    row = {"named": "f", "dtype": "float64", "world_size": 1, "tensor": "out", "sentence": ""}
    for numbers, expected in (({MARK: "float32"}, INSIDE), ({}, "precision_floor")):
        (found,) = gravest(pd.DataFrame([{**row, "label": "precision_floor", "numbers": numbers}])).values()
        assert found == expected


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


def test_a_drift_run_shows_each_pair_s_drift_over_its_limit(tmp_path: Path) -> None:
    drift = drift_of(run_of(tmp_path, shape(world_sizes=(4,)), drifted).results)
    assert drift is not None
    heads, rows = drift.table.head, {row[0].text.split(" ")[0]: row for row in drift.table.rows}
    far, near = (dict(zip(heads, rows[name], strict=True)) for name in ("zigzag@4", "ring@4"))
    assert len(rows) == 2
    assert (far["dv"].text, far["dv"].kind) == ("\N{BLACK UP-POINTING TRIANGLE} 1.50", "flagged")
    assert (far["dv"].detail, near["dv"].detail) == ("3.0e-3", "1.0e-3")
    assert (far["out"].text, near["out"].text) == ("0.500", "equal")
    assert far["nearer"].text == "b: dv"
    assert drift.tiles[0].value == "1.50\N{MULTIPLICATION SIGN}"


def test_the_command_of_a_row_has_what_is_set_and_a_shell_takes_hostile_text_as_one_word() -> None:
    case = {**identity(Shape(), "bpt", "bfloat16", 8, 0), "precision": "merge=logsumexp", "kernel_options": "tf32=True"}
    text = command({**case, "inputs_options": "scale=None", "softmax_scale": 0.5, "world": "processes"})
    assert {"inputs.gaussian.scale=null", "problem.softmax_scale=0.5", "world=processes"} <= {*shlex.split(text)}
    first, second = pd.DataFrame([{**case, "seed": None}, {**case, "seed": 3.0}]).to_dict("records")
    assert "seed" not in command(first)
    assert "seed=3 " in command(second)
    assert shlex.split(command({**case, "variant": HOSTILE, "options": ""}))[1] == f"variant={HOSTILE}"


def test_every_value_has_a_text_and_ratios_have_three_digits_and_the_geometric_mean_is_total() -> None:
    odd = [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1.7e308, -1e-3, "no number", 1, 1e5, 99999.9]
    writers = [number.scientific, number.plain, number.ratio, number.signed]
    for text in (write(value) for write in writers for value in odd):
        assert text
        assert "nan" not in text
        assert "inf" not in text
    for value, text in {1.2345: "1.23", 12.345: "12.3", 0.0312: "0.031", 123456: "1.23e5", 0.9996: "1.00"}.items():
        assert number.plain(value) == text
    for values, mean in (([1.0, 4.0, None, math.nan], 2.0), ([1.0, math.inf], math.inf), ([1.0, 0.0], 0.0)):
        assert number.geometric_mean(values) == pytest.approx(mean)
    assert math.isnan(number.geometric_mean([]))


def test_growth_is_the_exponent_with_the_textbook_interval_and_has_one_word() -> None:
    # x = log2 W = 1, 2, 3, 4 and y = 0, 1, 1, 2: slope 0.6, residual sum 0.2, sum of squares of x 5,
    # standard error sqrt(0.2 / 2 / 5) = 0.1414, t(2) = 4.3027. Logarithms of both axes cancel in the slope.
    growth = fit_growth([(2, 1.0), (4, 2.0), (8, 2.0), (16, 4.0)])
    assert isinstance(growth, Growth)
    assert growth.exponent == pytest.approx(0.6)
    assert growth.high - growth.exponent == pytest.approx(4.30265 * math.sqrt(0.02), rel=1e-5)
    growth = fit_growth([(1, 5.0), (2, math.inf), (4, 0.0), (8, math.nan), (2, 1.0), (4, 2.0), (8, 4.0)])
    assert isinstance(growth, Growth)  # without world size 1 and useless errors
    assert (growth.exponent, growth.points) == (pytest.approx(1.0), 3)
    assert "2 world sizes" in str(fit_growth([(1, 1.0), (2, 1.0), (4, 2.0), (4, 2.1)]))
    words = {(0.01, 0.05): "flat", (0.2, 0.3): "slow growth", (0.45, 0.55): "random walk", (0.9, 1.1): "bias",
             (-0.5, -0.2): "falling", (-0.4, 0.9): "unclear"}  # fmt: skip
    for (low, high), word in words.items():
        assert Growth((low + high) / 2, low, high, 9).word == word


BUDGET = 100_000
EVERY_SIZE = [0.0, -0.0, 1.0, 2.5, -3.25e-9, 1.234567e-300, 5e-324, 1.7e308, 0.99999996, math.inf, -math.inf, math.nan]
WHOLE = [0, 1, -1, 127, -128, 65536, 2**31 - 1, None, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """4,000 rows, each labelled; not to be changed."""
    folder = write_large_run(tmp_path_factory.mktemp("large"), Shape(), 4_000)
    return with_labels(read_folder(folder).results)


def test_what_does_not_fit_is_left_out_and_said_rows_of_single_ranks_and_late_seeds_first(large: pd.DataFrame) -> None:
    block = encode_rows(large, BUDGET)
    assert len(block.encoded) <= BUDGET
    assert block.rows < len(large)
    assert f"{len(large) - block.rows:,} were left out" in block.note
    kept = decoded(block.encoded)
    assert kept["rank"].count(-1) == (large["rank"] == -1).sum()
    single = [seed for seed, rank in zip(kept["seed"], kept["rank"], strict=True) if rank != -1]
    assert single.count(0) >= single.count(1) >= single.count(2)


@pytest.mark.parametrize(("budget", "dtype", "digits"), [(10**8, "Int64", 6), (BUDGET, "float64", 3)])
def test_every_size_of_number_survives(budget: int, dtype: str, digits: int, large: pd.DataFrame) -> None:
    """With six digits and, with a smaller budget, with three; whole numbers, which may arrive as floats, exactly."""
    first = large.sort_values("rank", kind="stable", ignore_index=True)
    rows = first.assign(error_bias=first["error_bias"].where(first.index >= len(EVERY_SIZE)))
    rows.loc[: len(EVERY_SIZE) - 1, "error_bias"] = EVERY_SIZE
    rows["worst_token"] = rows["worst_token"].astype(dtype)
    rows.loc[: len(WHOLE) - 1, "worst_token"] = pd.array(WHOLE, dtype="Int64").astype(dtype)
    block = encode_rows(rows, budget)
    assert f"rounded to {digits} " in block.note
    kept = decoded(block.encoded)
    assert kept["worst_token"][: len(WHOLE)] == WHOLE
    for given, found in zip(EVERY_SIZE, kept["error_bias"], strict=False):
        half = 0.5001 * 10.0 ** (1 - digits)  # of a unit of the last digit
        assert found == (None if math.isnan(given) else pytest.approx(given, rel=half, abs=0))


def test_what_a_case_says_once_is_in_each_of_its_rows_and_the_bytes_are_the_same_again(large: pd.DataFrame) -> None:
    rows = large.copy()
    encoded = encode_rows(rows).encoded
    assert encoded == encode_rows(large).encoded
    kept = decoded(encoded)
    for name in ("case_id", "series", "world_size", "peak_bytes", "tensor", "rank", "worst_token"):
        assert kept[name] == rows[name].tolist()
    assert kept["error_rel"] == pytest.approx(rows["error_rel"].tolist(), rel=5.1e-6, abs=0)  # half a unit of the sixth
    rows.loc[5, "peak_bytes"] = 7  # one row of a case disagrees: the column is no longer the case's
    assert decoded(encode_rows(rows).encoded)["peak_bytes"] == rows["peak_bytes"].tolist()
