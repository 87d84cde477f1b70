from pathlib import Path

import pandas as pd
import pytest

from accuracy.chart.view import Table
from accuracy.report.folder import Run, read_folder
from accuracy.report.section.cost import cost_panel
from accuracy.report.section.growth import growth_panel
from accuracy.report.section.heatmap import heat_cell, heatmap_panel
from accuracy.report.section.missing import reasons
from accuracy.report.section.positions import borders, chosen_world, position_panel
from accuracy.report.section.ranks import profile_of, rank_panel, rank_table
from accuracy.report.series import Facet, facets_of, left_out, legible, slots_of, with_labels
from tests.report.synthetic import Shape, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    variants, dtypes = ("bpt", "single_device", "striped", "zigzag"), ("float16", "bfloat16")
    shape = Shape(variants, dtypes, (1, 2, 4), tensors=("out", "dq"))
    return read_folder(write_run(tmp_path_factory.mktemp("run"), shape))


def facets(run: Run) -> list[Facet]:
    return facets_of(with_labels(run.results).loc[run.measured.index])


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_facets_go_from_coarse_to_fine_and_single_device_comes_first(run: Run) -> None:
    assert [facet.label for facet in facets(run)] == ["bfloat16", "float16"]
    assert facets(run)[0].series[0] == "single_device"
    assert slots_of(facets(run)[0].rows)["single_device"] == 0


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


def many_lines(run: Run) -> pd.DataFrame:
    """Forty variants, each further from single device than the one before, beside the run's own."""
    rows = run.results[run.results["variant"].isin(["single_device", "zigzag"]) & (run.results["dtype"] == "bfloat16")]
    zigzag = rows[rows["variant"] == "zigzag"]
    ids, errors = zigzag["case_id"], zigzag["x_single_device"]
    copies = [zigzag.assign(variant=f"v{n:02}", case_id=ids + f"v{n}", x_single_device=errors + n) for n in range(40)]
    return with_labels(pd.concat([rows, *copies], ignore_index=True))


def test_a_picture_holds_single_device_and_the_lines_furthest_from_it_and_says_so(run: Run) -> None:
    facet = facets_of(many_lines(run))[0]
    drawn = legible(facet)
    assert drawn.series == ["single_device", *(f"v{n}" for n in range(29, 40))]
    assert "12 of 42 variants" in left_out(facet, drawn)
    panel = growth_panel(facet, drawn, slots_of(drawn.rows))
    assert len(panel.legend) == 12 + 2  # and the references
    assert len({row[0].text for row in panel.data[0].rows}) == 42


def test_a_scatter_of_costs_holds_all_of_them(run: Run) -> None:
    facet = facets_of(many_lines(run))[0]
    drawn = legible(facet)
    panel = cost_panel(facet, drawn, slots_of(drawn.rows))
    assert panel is not None
    assert len(panel.legend) == 12
    assert all(f"v{n:02} " in chart.svg for chart in panel.charts for n in range(40))


def test_of_lines_that_are_written_alike_the_plainest_is_drawn(run: Run) -> None:
    rows = many_lines(run)
    alike = rows["variant"].str.startswith("v") & (rows["variant"] < "v36")
    rows.loc[alike, "x_single_device"] = 100.0 + rows.loc[alike, "x_single_device"] / 1e4
    drawn = legible(facets_of(rows)[0]).series
    assert drawn == ["single_device", "v00", "v36", "v37", "v38", "v39", "zigzag"]
    rows.loc[rows["variant"] == "v00", "series"] = "v00, changed"
    assert "v01" in legible(facets_of(rows)[0]).series


def test_few_lines_are_all_drawn(run: Run) -> None:
    facet = facets(run)[0]
    assert legible(facet) is facet
    assert left_out(facet, facet) == ""


def test_one_world_size_draws_no_growth_and_one_rank_no_profile(run: Run) -> None:
    every = with_labels(run.results).loc[run.measured.index]
    for size, panels in ((4, 1), (1, 0)):
        facet = facets_of(every[(every["world_size"] == size) & (every["dtype"] == "bfloat16")])[0]
        growth = growth_panel(facet, facet, slots_of(facet.rows))
        assert growth.charts == growth.tables == ()
        assert "no growth to draw" in growth.note
        assert growth.data[0].rows
        assert (rank_panel(facet, slots_of(facet.rows)) is not None) == panels


def test_the_heatmap_has_every_variant_at_its_largest_world_size(run: Run) -> None:
    panel = heatmap_panel(facets(run)[0])
    assert texts(panel.tables[0]) == [
        ["bpt (world size 1)", "1.15×", "1.15×"],  # noqa: RUF001
        ["striped", "2.30×", "2.30×"],  # noqa: RUF001
        ["zigzag", "1.18×", "1.18×"],  # noqa: RUF001
    ]
    assert [table.caption[-1] for table in panel.data] == ["2", "1"]


@pytest.mark.parametrize(("value", "heat"), [(1.0, 0.0), (2.0, 0.5), (0.5, -0.5), (100.0, 1.0), (0.0, -1.0)])
def test_the_colour_is_none_at_one_and_logarithmic(value: float, heat: float) -> None:
    assert heat_cell(value).heat == heat


def test_the_table_by_rank_has_maximum_and_mean_of_every_tensor(run: Run) -> None:
    facet = facets(run)[0]
    rows = facet.rows[(facet.rows["world_size"] == 4) & (facet.rows["rank"] >= 0)]
    table = rank_table(facet, profile_of(rows), "error", 4)
    assert table.head == ("variant", "rank", "out max", "out mean", "dq max", "dq mean")
    assert [row[:2] for row in texts(table)] == [[v, str(r)] for v in ("striped", "zigzag") for r in range(4)]
    expected = rows[(rows["series"] == "zigzag") & (rows["rank"] == 2) & (rows["tensor"] == "dq")]["error_max"].max()
    assert float(texts(table)[6][4]) == pytest.approx(expected, rel=5e-3)  # three digits


def test_chunk_borders_are_where_the_rank_changes() -> None:
    bins = pd.DataFrame({"token_begin": [0, 8, 16, 24], "rank": [0, 1, 1, 0]})
    assert borders(bins) == [8, 24]
    assert borders(bins.assign(rank=-1)) == []


@pytest.mark.parametrize(("sizes", "chosen"), [([1, 2, 8, 64], 8), ([1, 64, 32], 32), ([1], 1)])
def test_positions_are_shown_where_chunks_are_legible(sizes: list[int], chosen: int) -> None:
    assert chosen_world(sizes) == chosen


def test_positions_have_a_chart_per_sharding_and_tensor(run: Run) -> None:
    facet = facets(run)[0]
    panel = position_panel(facet, run.positions, slots_of(facet.rows))
    assert panel is not None
    assert len(panel.charts) == 4
    zigzag = next(chart for chart in panel.charts if chart.title.startswith("out") and "zigzag" in chart.title)
    assert "Chunk borders at tokens 128, 256, 384, 640, 768, 896." in zigzag.svg  # ranks 0 1 2 3 3 2 1 0


def test_reasons_are_grouped_with_failures_first(tmp_path: Path) -> None:
    shape = Shape((), reasons=("no float64", "out of memory", "no float64"))
    found = reasons(read_folder(write_run(tmp_path, shape)).cases)
    assert [(reason.heading, reason.reason) for reason in found] == [
        ("1 case failed", "out of memory"),
        ("2 cases unsupported", "no float64"),
    ]
    expected = "accuracy variant=ring kernel=eager inputs=gaussian dtype=float64 world_size=32"
    assert found[0].commands[0].startswith(expected)


def test_a_run_of_kernels_alone_is_compared_with_the_floor(tmp_path: Path) -> None:
    """Every kernel is its own single device: a ratio of 1 everywhere would say nothing. (Synthetic floors are 0.8.)"""
    shape = Shape(variants=("single_device",), dtypes=("bfloat16",), reasons=())
    run = read_folder(write_run(tmp_path / "kernels", shape))
    labelled = with_labels(run.results)
    panel = heatmap_panel(facets_of(labelled[labelled["tensor"].notna()])[0])
    assert "multiple of the floor" in panel.tables[0].caption
    assert {cell.text.rstrip("\u00d7") for row in panel.tables[0].rows for cell in row[1:]} == {"1.25"}
