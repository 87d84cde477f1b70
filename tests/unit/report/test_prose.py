"""An experiment's claims in a report: not able to change the table."""

from pathlib import Path

import pandas as pd
import pytest

from accuracy.core import paths
from accuracy.report.build import write_report
from accuracy.results.claim import Claim, experiment_folder, judge
from tests.unit.report.synthetic import Shape, write_run

ROOT = Path(__file__).parents[3]
RESULTS = pd.DataFrame({"error_rel": [1.0, 2.0]})
HEAD = "from accuracy.results.claim import Claim\n\n\ndef claims(results):\n    "


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


def test_claims_are_in_the_report_and_the_readme_is_named_or_linked_to(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (experiment / "claims.py").write_text(HEAD + "return [Claim('It holds.', True, 'seen')]\n")
    (experiment / "README.md").write_text("# T\n")
    shape = Shape(("ring",), ("bfloat16",), (2,), tensors=("out",), record={"experiment": "made_up"})
    run, path = write_run(tmp_path / "run", shape), "experiments/made_up/README.md"
    for address, part in (("", f"<code>{path}</code>"), ("https://x.z/a", f'"https://x.z/a/blob/main/{path}">')):
        monkeypatch.setattr(paths, "ADDRESS", address)
        page = write_report(run).path.read_text(encoding="utf-8")
        assert [each for each in ("It holds.", "claims held: 1 of 1", part) if each not in page] == []
