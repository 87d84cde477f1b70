from pathlib import Path

import pandas as pd
import pytest

from accuracy.core import paths
from accuracy.report.build import write_report
from accuracy.results.claim import Claim, experiment_folder, judge
from tests.report.synthetic import Shape, write_run

RESULTS = pd.DataFrame({"error_rel": [1.0, 2.0]})
HEAD = "from accuracy.results.claim import Claim\n\n\ndef claims(results):\n    "


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "EXPERIMENTS", tmp_path)
    (tmp_path / "made_up").mkdir()
    return tmp_path


def test_claims_are_judged_on_the_table(experiments: Path) -> None:
    (experiments / "made_up" / "claims.py").write_text(
        HEAD
        + "small = bool(results['error_rel'].max() < 3)\n"
        + "    return [Claim('small', small, '2 < 3'), Claim('other', None, 'no')]\n"
    )
    assert judge("made_up", RESULTS) == [Claim("small", True, "2 < 3"), Claim("other", None, "no")]


@pytest.mark.parametrize(
    ("body", "evidence"),
    [
        ("raise KeyError('x_single_device')", "KeyError: 'x_single_device'"),
        ("return ['text']", "returned a str"),
        (":", "Syntax"),
    ],
)
def test_a_faulty_claims_file_becomes_a_claim_that_does_not_hold(experiments: Path, body: str, evidence: str) -> None:
    (experiments / "made_up" / "claims.py").write_text(HEAD + body)
    (claim,) = judge("made_up", RESULTS)
    assert claim.holds is False
    assert evidence in claim.evidence


def test_claims_cannot_change_the_table(experiments: Path) -> None:
    (experiments / "made_up" / "claims.py").write_text(HEAD + "results['error_rel'] = 0\n    return []\n")
    judge("made_up", RESULTS)
    assert RESULTS["error_rel"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", ["../made_up", "made_up/..", "Made_up", "", None, 3, "absent", "made_up\n", "/"])
def test_a_name_that_is_no_experiment_has_no_folder(experiments: Path, name: object) -> None:
    assert experiment_folder(name) is None
    assert judge(name, RESULTS) == []


def test_claims_and_prose_are_in_the_report(experiments: Path, tmp_path: Path) -> None:
    (experiments / "made_up" / "claims.py").write_text(HEAD + "return [Claim('It holds.', True, 'seen')]\n")
    (experiments / "made_up" / "README.md").write_text(
        "# T\n\n## Question\nWhy?\n\n## Prediction\nSo.\n\n## Finding\nYes.\n"
    )
    shape = Shape(("ring",), ("bfloat16",), (2,), tensors=("out",), record={"experiment": "made_up"})
    page = write_report(write_run(tmp_path / "run", shape)).path.read_text(encoding="utf-8")
    for part in ("It holds.", "<p>Why?</p>", "<p>So.</p>", "<p>Yes.</p>", "claims held: 1 of 1"):
        assert part in page
