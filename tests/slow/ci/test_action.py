"""The action, the workflows and the Dockerfile: their schemas, and what each shell step does with what it is given."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import check_jsonschema
import pytest
import yaml
from click.testing import CliRunner

from tests.command_line import CommandLine

ROOT = Path(__file__).parents[3]
ACTION = ROOT / ".github" / "actions" / "gate" / "action.yml"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXAMPLES = sorted((ROOT / "examples" / "workflows").glob("*.yml"))


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def test_workflows_action_and_examples_fit_their_schemas_and_name_inputs_that_the_action_has(tmp_path: Path) -> None:
    def complaints(schema: str, *paths: Path) -> str:
        done = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", schema, *map(str, paths)])
        return done.output if done.exit_code else ""

    assert complaints("vendor.github-actions", ACTION) == ""
    assert complaints("vendor.github-workflows", *WORKFLOWS, *EXAMPLES) == ""
    (tmp_path / "wrong.yml").write_text(EXAMPLES[0].read_text().replace("runs-on:", "runs_on:"))
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


COMMANDS = """
accuracy() { echo "accuracy $*" >> called; test "$1" != check || return 3; }
gh() { case "$*" in *--paginate*) cat own ;; *) echo "gh $*" >> called; test ! -e read-only-token ;; esac; }
"""
FORK = {"HEAD": "stranger/mine", "HERE": "me/mine", "FORKS": "false"}
CHECK = {"MEASURE": "variant=ring seed=[0,1]", "OUT": "out", "SECOND": "[8,9]", "CHECK": "--part"}
CHECKED = "accuracy check out/run --out out --baseline folder --part"
COMMENT = {"OUT": "out", "REPOSITORY": "me/mine", "NUMBER": "7"}
STEPS: list[tuple[str, dict[str, str], int, list[str], str]] = [  # environment, status, what was called, what is told
    ("guard", FORK, 3, [], "::error::not measured: this pull request is from a fork (stranger/mine)"),
    ("guard", {**FORK, "FORKS": "true"}, 0, [], ""),
    ("guard", {**FORK, "HEAD": "me/mine"}, 0, [], ""),
    ("measure", {**CHECK, "BASELINE": "none"}, 0, ["accuracy variant=ring seed=[0,1] output_dir=out/run"], ""),
    ("measure", {**CHECK, "BASELINE": "own"}, 2, [], "::error::baseline own is no folder"),
    ("gate", {**CHECK, "BASELINE": "none", "SECOND": ""}, 0, ["accuracy check out/run --out out"], "status=3"),
    ("gate", {**CHECK, "BASELINE": "folder"}, 0,
     [CHECKED, "accuracy variant=ring seed=[0,1] seed=[8,9] output_dir=out/second", f"{CHECKED} --second out/second"],
     "status=3"),
    ("summary", {"BASELINE": "none", "OUT": "out"}, 0, [], "accuracy accept out/run --to none, and commit none"),
    ("summary", {"BASELINE": "folder", "OUT": "out"}, 0, [], "## a summary"),
    ("comment", COMMENT, 0, ["gh api --silent -X PATCH repos/me/mine/issues/comments/41 -F body=@out/marked.md"], ""),
    ("outcome", {"STATUS": "3"}, 3, [], ""),
]  # fmt: skip


def step(name: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """As `shell: bash` means it by GitHub's documentation, with functions in place of `accuracy` and `gh`."""
    (script,) = (each["run"] for each in read(ACTION)["runs"]["steps"] if each["name"] == name)
    written = {f"GITHUB_{each}": str(folder / "written") for each in ("OUTPUT", "PATH", "STEP_SUMMARY")}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", COMMANDS + script]
    return subprocess.run(words, cwd=folder, env=os.environ | written | variables, capture_output=True, text=True)


@pytest.mark.parametrize(("name", "variables", "status", "called", "told"), STEPS)
def test_a_step_calls_what_it_must_and_says_how_it_ended(
    name: str, variables: dict[str, str], status: int, called: list[str], told: str, tmp_path: Path
) -> None:
    """Its words are no patterns of file names, the undecided get their second look, a comment of ours is replaced."""
    for each in ("out", "folder"):
        (tmp_path / each).mkdir()
    content = {"seed=0": "", "out/check.json": '"label": "undecided"', "out/summary.md": "## a summary", "own": "41\n",
               "out/comment.md": "worse"}  # fmt: skip
    for path, text in content.items():
        (tmp_path / path).write_text(text)
    done = step(name, tmp_path, **variables)
    lines, written = (tmp_path / each for each in ("called", "written"))
    assert done.returncode == status, done.stderr
    assert (lines.read_text().splitlines() if lines.exists() else []) == called
    assert told in done.stdout + (written.read_text() if written.exists() else "")


def test_a_comment_that_is_not_there_yet_is_made_and_one_that_may_not_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name, text in (("out/comment.md", "worse"), ("own", ""), ("read-only-token", "")):
        (tmp_path / name).write_text(text)
    done = step("comment", tmp_path, **COMMENT)
    assert (done.returncode, "::notice::no comment: the token may not write" in done.stdout) == (0, True)
    assert "gh api --silent repos/me/mine/issues/7/comments -F" in (tmp_path / "called").read_text()
    assert (tmp_path / "out" / "marked.md").read_text() == "<!-- accuracy-check of out -->\nworse"


def test_the_package_is_installed_in_an_environment_of_its_own_and_the_runner_s_torch_stays(tmp_path: Path) -> None:
    """A `python` that makes hollow environments and only writes down what pip was asked."""
    python, own = tmp_path / "bin" / "python", tmp_path / "accuracy-venv"
    python.parent.mkdir()
    python.write_text(f"""#!/bin/sh
case "$1 $2" in
"-m venv") mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
"-m pip") echo "$@" >> "{tmp_path}/called"; if [ "$3" = list ]; then echo "torch==2.13.0"; fi ;;
"-c import site"*) echo "{tmp_path}" ;;
*) echo /usr/lib/site-packages ;;
esac
""")
    python.chmod(0o755)
    path = f"{python.parent}:{os.environ['PATH']}"
    done = step("install", tmp_path, PATH=path, RUNNER_TEMP=str(tmp_path), GITHUB_ACTION_PATH="/a/b/c/d")
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "called").read_text().splitlines()
    assert asked[-1] == f"-m pip install --quiet --constraint {own}/torch.txt /a/b/c/d/../../.."
    assert (own / "torch.txt").read_text() == "torch==2.13.0\n"
    assert (tmp_path / "runner.pth").read_text() == "/usr/lib/site-packages\n"
    assert (tmp_path / "written").read_text() == f"{own}/bin\n"


def test_what_the_examples_and_the_docker_build_ask_for_is_a_plan(accuracy: CommandLine) -> None:
    (accuracy.folder / "my_package.py").write_text("def my_attention(q, k, v, causal, softmax_scale, group=None): ...")
    accuracy.monkeypatch.syspath_prepend(accuracy.folder)
    text = (ROOT / "Dockerfile").read_text()
    installed, *commands = re.findall(r"^RUN (.+)$", text, re.MULTILINE)
    assert installed.endswith(" --constraint constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu .")
    asked = [shlex.split(each) for each in " ".join(commands).split(" && ")]
    asked += [["accuracy", *read(path)["env"]["MEASURE"].replace("cuda", "cpu").split()] for path in EXAMPLES]
    assert len(asked) == 4
    for name, *words in asked:
        assert (name, accuracy(*words, *(["dry_run=true"] if "=" in words[0] else [])).status) == ("accuracy", 0), words
