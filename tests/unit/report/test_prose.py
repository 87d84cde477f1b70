"""An experiment's README and claims in a report: safe, and not able to change the table. A claim that no table can
contradict says nothing: each published one that holds fails on some distorted table."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from accuracy.core import paths
from accuracy.report.about import sections, to_html
from accuracy.report.build import write_report
from accuracy.results import table
from accuracy.results.claim import Claim, answer_case, experiment_folder, judge, judge_answer
from experiments.published import Tables
from tests.unit.report import page_check
from tests.unit.report.synthetic import HOSTILE, Shape, write_run

ROOT = Path(__file__).parents[3]
RESULTS = pd.DataFrame({"error_rel": [1.0, 2.0]})
HEAD = "from accuracy.results.claim import Claim\n\n\ndef claims(results):\n    "
MARKDOWN = """A **bold** `code`.

- one

1. first

   still first

|a|b|
|-|-|
|1|2|

[text](https://x.y) and [beside](../depth/README.md), <b>raw</b>

```
x <y

z
```
"""
PARTS = (
    "<strong>bold</strong>", "<code>code</code>", "<li>one</li>", "<ol>", "<p>still first</p>", "<td>2</td>",
    '<a href="https://x.y">text</a>', "&lt;b&gt;raw", "x &lt;y\n\nz",
)  # fmt: skip


def test_the_markdown_in_use_is_understood_and_a_link_to_a_file_leads_to_the_public_repository_or_is_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for address, part in (
        ("", '<span title="experiments/depth/README.md">beside</span>'),
        ("https://x.z/a", '<a href="https://x.z/a/blob/main/experiments/depth/README.md">beside</a>'),
    ):
        monkeypatch.setattr(paths, "ADDRESS", address)
        html = to_html(MARKDOWN, "experiments/packages")
        assert [each for each in (*PARTS, part) if each not in html] == []


def test_an_experiments_readme_is_escaped_and_no_link_of_it_runs() -> None:
    text = "# Title\n## Question\nX\n\n- `X`\n\n```\nX\n```\n\n|a|b|\n|-|-|\n|X|1|\n".replace("X", HOSTILE)
    html = to_html(sections(text)["Question"])
    assert page_check.dangerous(html) == []
    assert "<script" not in html
    for link in ("javascript:alert(1)", "data:text/html,x", "vbscript:x"):
        assert "href" not in to_html(f"[text]({link})")


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an experiment that is called made_up."""
    monkeypatch.setattr(paths, "EXPERIMENTS", tmp_path)
    (tmp_path / "made_up").mkdir()
    return tmp_path / "made_up"


def test_claims_cannot_change_a_table_and_a_faulty_file_is_a_claim_that_does_not_hold(experiment: Path) -> None:
    for body, claim in {
        "results['error_rel'] = 0\n    return [Claim('small', True, '2 < 3')]": Claim("small", True, "2 < 3"),
        "raise KeyError('x_single_device')": "KeyError: 'x_single_device'",
        "return ['text']": "returned a str",
        ":": "Syntax",
    }.items():
        (experiment / "claims.py").write_text(HEAD + body)
        (found,) = judge("made_up", RESULTS)
        assert found == claim if isinstance(claim, Claim) else not found.holds and claim in found.evidence
    assert RESULTS["error_rel"].tolist() == [1.0, 2.0]
    for name in ("../made_up", "made_up/..", "Made_up", "", None, 3, "absent", "made_up\n", "/"):
        assert experiment_folder(name) is None
        assert judge(name, RESULTS) == []


def test_claims_and_prose_are_in_the_report(experiment: Path, tmp_path: Path) -> None:
    (experiment / "claims.py").write_text(HEAD + "return [Claim('It holds.', True, 'seen')]\n")
    (experiment / "README.md").write_text("# T\n\n## Question\nWhy?\n\n## Prediction\nSo.\n\n## Finding\nYes.\n")
    shape = Shape(("ring",), ("bfloat16",), (2,), tensors=("out",), record={"experiment": "made_up"})
    page = write_report(write_run(tmp_path / "run", shape)).path.read_text(encoding="utf-8")
    parts = ("It holds.", "<p>Why?</p>", "<p>So.</p>", "<p>Yes.</p>", "claims held: 1 of 1")
    assert [part for part in parts if part not in page] == []


ANSWERS = [
    path.parent.name
    for path in sorted(ROOT.glob("experiments/*/README.md"))
    if sections(path.read_text()).get("Answer")
]


def test_an_answer_names_a_case_that_was_measured() -> None:
    for experiment, case in ((name, pd.Series(answer_case(name))) for name in ANSWERS if answer_case(name)):
        tables = (table.read_results(path.parent) for path in (ROOT / "reports" / experiment).glob("*/results.parquet"))
        assert any((rows[[*case.index]].fillna("") == case).all(axis=1).any() for rows in tables), experiment


REPORTS = ROOT / "reports"
PUBLISHED = sorted(path.parent for path in REPORTS.glob("*/*/run.json"))
YARDSTICKS = ("single_device_", "exact_", "floor_", "reference_", "condition_")


def _numbers(results: pd.DataFrame) -> pd.DataFrame:
    """What was measured, without numbers of the case."""
    return results.select_dtypes("float").drop(columns=["softmax_scale", "gain"], errors="ignore")


def _times(results: pd.DataFrame, factor: object, only: Callable[[str], bool] = lambda name: True) -> pd.DataFrame:
    changed = _numbers(results).mul(factor, axis=0)
    return results.assign(**{name: changed[name] for name in changed if only(name)})


def _scrambled(results: pd.DataFrame) -> pd.DataFrame:
    measured = np.flatnonzero(results["error_rel"].notna())
    rows = np.arange(len(results))
    rows[measured] = np.random.default_rng(0).permutation(measured)
    numbers = _numbers(results)
    return results.assign(**{name: numbers[name].to_numpy()[rows] for name in numbers})


def _column(results: pd.DataFrame, name: str) -> pd.Series:
    """1 where a table lacks it: stacks have layers in place of ranks; conditions are recorded where asked for."""
    return results.get(name, pd.Series(1.0, results.index)).fillna(1.0)


def _by_kernel(results: pd.DataFrame, factor: float) -> pd.DataFrame:
    """Each kernel's numbers so many times those of the one before it by name and options."""
    kernel = results["kernel"].fillna("") + " " + results["kernel_options"].fillna("")
    return _times(results, factor ** kernel.astype("category").cat.codes.astype(float))


DISTORTIONS: tuple[Callable[[pd.DataFrame], pd.DataFrame], ...] = (
    lambda results: _times(results, 1e3),
    lambda results: _times(results, 1e-3),
    lambda results: _times(results, 1e3, lambda name: not name.startswith(YARDSTICKS)),
    lambda results: _times(results, 1e3, lambda name: name.startswith("single_device_")),
    lambda results: _times(results, results["world_size"] ** 2.0),
    lambda results: _times(results, _column(results, "layers") ** 2),
    lambda results: _times(results, 2.0 ** _column(results, "rank").clip(lower=0)),
    lambda results: results.assign(**dict.fromkeys(("error_bias", "error_outward"), _column(results, "error_rms"))),
    lambda results: _times(results, _column(results, "condition_softmax") ** 4),
    lambda results: results.assign(error_rel=1e-3 * _column(results, "condition_sum")),
    lambda results: _by_kernel(results, 4.0),
    lambda results: _by_kernel(results, 0.25),
    _scrambled,
    lambda results: results.assign(status=["failed", *results["status"].iloc[1:]]),
)


@pytest.mark.stress(1)
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_every_published_claim_that_holds_fails_on_a_distorted_table(folder: Path) -> None:
    experiment = folder.parent.name
    results = Tables(REPORTS).rows(f"{experiment}/{folder.name}")

    def judged(table: pd.DataFrame) -> list[Claim]:
        return [*judge(experiment, table), *judge_answer(experiment, table)]

    holding = {claim.statement for claim in judged(results) if claim.holds}
    distorted = [judged(distort(results)) for distort in DISTORTIONS]
    assert holding <= {claim.statement for claims in distorted for claim in claims if claim.holds is False}
