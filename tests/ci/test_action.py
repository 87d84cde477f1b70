import json
import re
import shutil
from pathlib import Path

import check_jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from accuracy.cli import publish
from accuracy.results import sums, table
from tests.ci.runner import ACTION, ROOT, Runner, read

pytestmark = pytest.mark.xdist_group("ci")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MEASURE = (
    "variant=[single_device,ring] device=cpu world_size=[1,2] seed=[0,1] dtype=bfloat16 problem.seqlen=64 "
    "problem.heads=2 problem.heads_kv=2 problem.head_dim=16 reference.folder=null report=false"
)


def example() -> str:
    """The workflow that the gate's README tells other repositories to copy."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "accuracy" / "gate" / "README.md").read_text(), flags=re.DOTALL)
    (found,) = (block for block in blocks if "actions/gate" in block)
    return found


def complaints(schema: str, path: Path) -> str:
    done = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", schema, str(path)])
    return done.output if done.exit_code else ""


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_workflows_and_the_action_fit_their_schemas(path: Path) -> None:
    assert complaints("vendor.github-actions" if path == ACTION else "vendor.github-workflows", path) == ""


def test_the_example_fits_the_schema_and_has_about_ten_lines(tmp_path: Path) -> None:
    (tmp_path / "gate.yml").write_text(example())
    assert complaints("vendor.github-workflows", tmp_path / "gate.yml") == ""
    assert len(example().splitlines()) <= 12


def test_the_schema_sees_a_wrong_key(tmp_path: Path) -> None:
    (tmp_path / "gate.yml").write_text(example().replace("runs-on:", "runs_on:"))
    assert "runs_on" in complaints("vendor.github-workflows", tmp_path / "gate.yml")


def uses(path: Path) -> list[dict[str, str]]:
    steps = [step for job in read(path)["jobs"].values() for step in job["steps"]]
    return [step["with"] for step in steps if "actions/gate" in step.get("uses", "")]


def test_every_use_of_the_action_names_inputs_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "gate.yml").write_text(example())
    known = read(ACTION)["inputs"]
    found = [given for path in (*WORKFLOWS, tmp_path / "gate.yml") for given in uses(path)]
    assert len(found) >= 4
    for given in found:
        assert set(given) <= set(known), given
        assert "measure" in given


def test_no_input_is_pasted_into_a_script() -> None:
    """What a stranger's pull request may name must reach a shell as a variable only."""
    scripts = [step["run"] for step in read(ACTION)["runs"]["steps"] if "run" in step]
    assert len(scripts) >= 5
    assert not [script for script in scripts if "${{" in script]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and a baseline made of it."""
    folder = tmp_path_factory.mktemp("ci")
    runner = Runner(folder, {"measure": MEASURE, "out": "first"})
    assert runner.run() == 0, runner.said
    publish.publish(folder / "first" / "run", folder / "reports", every_digit=True)
    return folder


def test_without_a_baseline_the_steps_install_measure_judge_and_say_so(measured: Path) -> None:
    assert (measured / "pip").read_text().split() == ["-m", "pip", "install", "--quiet", f"{ACTION.parent}/../../.."]
    assert (ACTION.parent / "../../.." / "pyproject.toml").resolve() == ROOT / "pyproject.toml"
    assert "accuracy-check adhoc: ok" in (measured / "github_summary").read_text()
    assert {path.name for path in (measured / "first").iterdir()} >= {"check.json", "junit.xml", "compare.html", "run"}


def copied(measured: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(measured / "reports", tmp_path / "reports"))


@pytest.mark.stress
def test_a_rerun_passes_against_its_baseline(measured: Path, tmp_path: Path) -> None:
    copied(measured, tmp_path)
    runner = Runner(tmp_path, {"measure": MEASURE, "baseline": "reports/adhoc", "check": "--require-baseline"})
    assert runner.run() == 0, runner.said
    assert runner.outputs == {"status": "0"}
    items = json.loads((tmp_path / "accuracy-check" / "check.json").read_text())["items"]
    assert {item["label"] for item in items if item["state"] == "passed"} == {"identical"}


def better(folder: Path, factors: list[float]) -> None:
    """Make a baseline's errors smaller, seed by seed, so that the run is the worse one."""
    (path,) = folder.glob("*/*/results.parquet")
    rows = table.read_results(path.parent)
    factor = rows["seed"].map(dict(enumerate(factors))).where(rows["variant"] == "ring", 1.0)
    rows["error_rel"] /= factor
    for ratio, below in (("x_single_device", "single_device_rel"), ("x_floor", "floor_rel")):
        rows[ratio] = np.where(rows[below] > 0, rows["error_rel"] / rows[below], rows[ratio])
    pq.write_table(pa.Table.from_pandas(rows, table.RESULTS_SCHEMA, preserve_index=False), path)
    sums.write(path.parent)


def test_a_regression_fails_the_job_with_status_1_and_the_summary_is_there(measured: Path, tmp_path: Path) -> None:
    better(copied(measured, tmp_path), [1.1, 1.1])  # the same factor on every seed: no spread, so two seeds tell
    runner = Runner(tmp_path, {"measure": MEASURE, "baseline": "reports/adhoc", "second-look": "[8,9]"})
    assert runner.run() == 1, runner.said
    assert runner.gone == {"install": 0, "measure": 0, "gate": 0, "summary": 0, "outcome": 1}
    assert "regression" in (tmp_path / "github_summary").read_text()


@pytest.mark.stress
def test_the_undecided_get_their_second_look_on_fresh_seeds(measured: Path, tmp_path: Path) -> None:
    """One seed on either side cannot be told apart; the second look's seeds can."""
    one = MEASURE.replace("seed=[0,1]", "seed=0")
    first = Runner(tmp_path, {"measure": one, "out": "first"})
    assert first.run() == 0, first.said
    publish.publish(tmp_path / "first" / "run", tmp_path / "reports", every_digit=True)
    better(tmp_path / "reports", [1.1])
    runner = Runner(tmp_path, {"measure": one, "baseline": "reports/adhoc", "second-look": "[8,9,10,11]"})
    status = runner.run()
    assert "after two looks" in runner.said
    assert (tmp_path / "accuracy-check" / "second" / "run.json").exists()
    assert str(status) == runner.outputs["status"]


def test_a_mistake_in_the_words_fails_at_the_measuring(tmp_path: Path) -> None:
    runner = Runner(tmp_path, {"measure": "variant=rng"})
    assert runner.run() == 2 or runner.gone["measure"] == 1
    assert "did you mean ring?" in runner.said
    assert "gate" not in runner.gone
