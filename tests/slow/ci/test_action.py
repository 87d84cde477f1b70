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
from accuracy.results import storage, table
from tests.slow.ci.runner import ACTION, BY_HAND, PULL, ROOT, Runner, git, read, repository

pytestmark = pytest.mark.xdist_group("ci")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXAMPLES = sorted((ROOT / "examples" / "workflows").glob("*.yml"))
CPU = ROOT / "examples" / "workflows" / "accuracy.yml"
SMALL = ("device=cpu dtype=bfloat16 problem.seqlen=64 problem.heads=2 problem.heads_kv=2 problem.head_dim=16 "
         "report=false")  # fmt: skip


def test_workflows_action_and_examples_fit_their_schemas_and_name_inputs_that_the_action_has(tmp_path: Path) -> None:
    def complaints(schema: str, *paths: Path) -> str:
        done = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", schema, *map(str, paths)])
        return done.output if done.exit_code else ""

    assert complaints("vendor.github-actions", ACTION) == ""
    assert complaints("vendor.github-workflows", *WORKFLOWS, *EXAMPLES) == ""
    (tmp_path / "wrong.yml").write_text(CPU.read_text().replace("runs-on:", "runs_on:"))
    assert "runs_on" in complaints("vendor.github-workflows", tmp_path / "wrong.yml")
    for path in (*WORKFLOWS, *EXAMPLES):
        for steps in (job["steps"] for job in read(path)["jobs"].values()):
            for use in (step for step in steps if "actions/gate" in step.get("uses", "")):
                assert {"measure"} <= {*use["with"]} <= {*read(ACTION)["inputs"]}, path
                places = [step["with"]["path"] for step in steps if "repository" in step.get("with", {})]
                used = use["uses"].removeprefix(f"./{places[0]}/" if path in EXAMPLES else "./")
                assert ROOT / used / "action.yml" == ACTION


def test_no_input_is_pasted_into_a_script() -> None:
    """What a stranger's pull request may name must reach a shell as a variable only."""
    scripts = [step["run"] for step in read(ACTION)["runs"]["steps"] if "run" in step]
    assert len(scripts) >= 5
    assert not [script for script in scripts if "${{" in script]


FUNCTION = """
from torch.nn.functional import scaled_dot_product_attention

def my_attention(q, k, v, *, causal, softmax_scale{group}):
    dtype = q.dtype
    q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2).to(dtype)
"""


def smaller(path: Path, *changes: tuple[str, str]) -> dict[str, str]:
    """The example's environment, in which MEASURE says something else."""
    measure = read(path)["env"]["MEASURE"]
    for before, after in changes:
        assert before in measure
        measure = measure.replace(before, after)
    return {"MEASURE": measure}


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runner]:
    """A repository of somebody's with the example for a CPU, of fewer tokens: a baseline that is measured by hand and
    merged, a pull request that makes it worse, and one whose run is the baseline's."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "comments.json").write_text(json.dumps([{"id": 1, "body": "another bot's"}]))
    (folder / "my_package.py").write_text(FUNCTION.format(group=""))
    repository(folder)
    runs = {}
    for name in ("renew", "worse"):
        code = FUNCTION.format(group="").replace("float()", f"{'bfloat16' if name == 'worse' else 'float'}()")
        (folder / "my_package.py").write_text(code)
        changes = ("256", "64"), ("name=", "name=" if name == "renew" else "report=false name=")
        runs[name] = Runner(folder, github=BY_HAND if name == "renew" else PULL, env=smaller(CPU, *changes))
        runs[name].outcome = runs[name].job(CPU, "renew" if name == "renew" else "gate")
        runs[name].summary = (folder / "github_summary").read_text()
        (folder / "github_summary").unlink()
        shutil.move(folder / "accuracy-gate", folder / name)
    runs["same"] = Runner(folder, runs["worse"].inputs | {"out": "renew"}, PULL)
    runs["same"].outcome = runs["same"].run("gate")
    return runs


def test_a_job_installs_in_an_environment_of_its_own_and_the_runner_s_torch_stays(story: dict[str, Runner]) -> None:
    worse = story["worse"]
    assert {path.name for path in (worse.folder / "worse").iterdir()} >= {"check.json", "junit.xml", "summary.md"}
    temporary = worse.folder / "temporary"
    own = temporary / "accuracy-venv"
    asked = (worse.folder / "pip").read_text().splitlines()
    assert {"-m pip install torch --index-url https://download.pytorch.org/whl/cpu", "-m pip install ."} <= {*asked}
    assert f"-m pip install --quiet --constraint {own}/torch.txt {ACTION.parent}/../../.." in asked
    assert (own / "torch.txt").read_text() == "torch==2.13.0\n"
    assert (temporary / "runner.pth").read_text().strip()
    assert (worse.folder / "github_path").read_text().splitlines()[0] == f"{own}/bin"


def test_a_baseline_of_24_seeds_is_measured_by_hand_and_offered_as_a_pull_request(story: dict[str, Runner]) -> None:
    renewed = story["renew"]
    assert renewed.outcome == 0, renewed.said
    assert "24 seeds in each of" in renewed.said
    offered = json.loads((renewed.folder / "pulls.json").read_text())
    assert offered[:2] == ["--head", "accuracy-baseline-5"]
    assert ": torch was upgraded (" in offered[-1]
    files = git(renewed.folder, "diff", "--name-only", "main", "origin/accuracy-baseline-5").split()
    assert {Path(each).name for each in files} >= {"results.parquet", "run.json", "SHA256SUMS", "history.jsonl"}
    assert not [each for each in files if not each.startswith("accuracy-baseline/my_attention/") or "report" in each]


def test_a_pull_request_that_is_worse_fails_and_one_that_is_not_passes(story: dict[str, Runner]) -> None:
    """Against the baseline's name and commit, which the header says."""
    worse, same = story["worse"], story["same"]
    assert (worse.outcome, "regression" in worse.summary, "no baseline yet" in worse.summary) == (1, True, False)
    assert same.outcome == 0, same.said
    commit = git(same.folder, "rev-parse", "main")[:12]
    (said,) = re.findall(r"against: (accuracy-baseline/my_attention)/\S+ \(commit (\w+), same", same.said)
    assert said == ("accuracy-baseline/my_attention", commit)


def test_without_a_baseline_the_job_is_green_and_says_how_to_accept_its_result(tmp_path: Path) -> None:
    """The example for a GPU at its first attempt; on a CPU, and smaller: all else is as it stands."""
    path = ROOT / "examples" / "workflows" / "accuracy-gpu.yml"
    (tmp_path / "my_package.py").write_text(FUNCTION.format(group=", group=None"))
    env = smaller(path, ("cuda", "cpu report=false"), ("4096", "64"), ("[1,2,4]", "1"))
    runner = Runner(tmp_path, github=PULL, env=env)
    assert runner.job(path, "gate") == 0, runner.said
    assert " passed, 0 failed" in runner.said
    said = "then: accuracy accept accuracy-gate/run --to accuracy-baseline"
    assert (said in runner.said, said in (tmp_path / "github_summary").read_text()) == (True, True)


def test_the_pull_request_has_one_comment_of_each_gate_and_no_other_is_touched(tmp_path: Path) -> None:
    (tmp_path / "comments.json").write_text(json.dumps([{"id": 1, "body": "another bot's"}]))
    for name, text in (("worse", "1"), ("mended", "2"), ("worse", "3")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "comment.md").write_text(text)
        again = Runner(tmp_path, {"measure": "", "install": "false", "comment": "true", "out": name}, PULL)
        assert again.run("comment") == 0
    assert [each["body"].splitlines() for each in json.loads((tmp_path / "comments.json").read_text())] == [
        ["another bot's"], ["<!-- accuracy-check of worse -->", "3"], ["<!-- accuracy-check of mended -->", "2"],
    ]  # fmt: skip
    (tmp_path / "read-only-token").touch()
    assert again.run("comment") == 0
    assert "::notice::no comment: the token may not write" in again.said


def test_the_code_of_a_fork_is_not_run_unless_asked_for_and_a_mistake_fails_at_the_measuring(tmp_path: Path) -> None:
    fork = PULL | {"event.pull_request.head.repo.full_name": "stranger/mine"}
    runner = Runner(tmp_path, {"measure": "variant=ring"}, fork)
    assert runner.run() == 3
    assert "not measured: this pull request is from a fork (stranger/mine)" in runner.said
    assert set(runner.gone) == {"guard", "summary"}
    trusted = Runner(tmp_path, {"measure": "variant=rng", "install": "false", "forks": "true"}, fork)
    assert trusted.run() in (1, 2)
    assert "did you mean ring?" in trusted.said
    assert (trusted.gone["guard"], "gate" in trusted.gone) == (0, False)


def test_every_line_that_a_docker_build_runs_runs_and_installs_what_the_tests_run_with(tmp_path: Path) -> None:
    text = (ROOT / "Dockerfile").read_text()
    lines, runner = re.findall(r"^RUN (.+)$", text, re.MULTILINE), Runner(tmp_path)
    assert [runner.shell(line) for line in lines] == [0] * len(lines), runner.said
    (installed,) = (tmp_path / "pip").read_text().splitlines()
    assert installed.endswith(" --constraint constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu .")
    assert (ROOT / "constraints.txt").is_file()
    assert "(nothing written)" in runner.said
    assert runner.shell("accuracy experiment=dmo dry_run=true") == 2  # a line that cannot run is seen


@pytest.mark.stress
def test_the_undecided_get_their_second_look(tmp_path: Path) -> None:
    """One seed on either side cannot be told apart; the second look's seeds can."""
    measure = f"variant=[single_device,ring] world_size=[1,2] seed=0 {SMALL}"
    first = Runner(tmp_path, {"measure": measure, "out": "first"})
    assert first.run() == 0, first.said
    publish.publish(tmp_path / "first" / "run", tmp_path / "reports", every_digit=True)
    (path,) = tmp_path.glob("reports/*/*/results.parquet")
    rows = table.read_results(path.parent)  # a baseline with smaller errors, so that the run is the worse one
    rows["error_rel"] /= np.where(rows["variant"] == "ring", 1.1, 1.0)
    for ratio, below in (("x_single_device", "single_device_rel"), ("x_floor", "floor_rel")):
        rows[ratio] = np.where(rows[below] > 0, rows["error_rel"] / rows[below], rows[ratio])
    pq.write_table(pa.Table.from_pandas(rows, table.RESULTS_SCHEMA, preserve_index=False), path)
    storage.write_sums(path.parent)
    runner = Runner(tmp_path, {"measure": measure, "baseline": "reports/adhoc", "second-look": "[8,9,10,11]"})
    assert str(runner.run()) == runner.outputs["status"]
    assert "after two looks" in runner.said
    assert (tmp_path / "accuracy-gate" / "second" / "run.json").exists()
