"""A stand-in for GitHub's runner, as far as a machine without the service can be one: the shell steps of the action and
of a job that uses it, as they stand, with their environment, outputs and step summary. `if:` is evaluated where it
compares inputs or entries of `github` with words."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
ACTION = ROOT / ".github" / "actions" / "gate" / "action.yml"
SHELL = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]  # what `shell: bash` means, by GitHub's documentation
PYTHON = """
case "$1 $2" in
"-m venv") mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
"-m pip") echo "$@" >> "{folder}/pip"; if [ "$3" = list ]; then echo "torch==2.13.0"; fi ;;
"-c import site"*) echo "{folder}/temporary" ;;
*) exec "{python}" "$@" ;;
esac
"""
PULL = {
    "event_name": "pull_request", "repository": "me/mine", "event.pull_request.head.repo.full_name": "me/mine",
    "event.pull_request.number": "7",
}  # fmt: skip
BY_HAND = {"event_name": "workflow_dispatch", "run_id": "5", "event.inputs.reason": "torch was upgraded"}
GIT = ("git", "-c", "user.name=me", "-c", "user.email=me@localhost")
COMMANDS = {"accuracy": "accuracy", "accuracy-check": "accuracy.cli.check"}


def git(folder: Path, *words: str) -> str:
    return subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def repository(folder: Path) -> None:
    """Make a repository of what is in a folder, and one that it pushes to."""
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", "my_package.py")
    git(folder, "commit", "--quiet", "--message", "mine")
    git(folder, "init", "--quiet", "--bare", str(folder / "remote"))
    git(folder, "remote", "add", "origin", str(folder / "remote"))


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


@dataclass
class Runner:
    """Runs the action in `folder`; gone: exit status of each shell step; said: what they printed."""

    folder: Path
    inputs: dict[str, str] = field(default_factory=dict)
    github: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    said: str = ""
    outcome: int | None = None
    summary: str = ""

    def run(self, *only: str) -> int:
        """The job's outcome: 0, or the status of the first step that failed; `always()` steps run all the same. only:
        names of steps, the others' files being there."""
        action = read(ACTION)
        self.inputs = {name: str(each.get("default", "")) for name, each in action["inputs"].items()} | self.inputs
        failed = 0
        for step in action["runs"]["steps"]:
            condition = step.get("if", "")
            asked = re.findall(r"(inputs|github)\.([\w-]+) == '(\w+)'", condition)
            wanted = all(getattr(self, place).get(name) == value for place, name, value in asked)
            if "run" not in step or (only and step["name"] not in only):
                continue
            if wanted and (not failed or "always()" in condition):
                self.gone[step["name"]] = self._step(step)
                failed = failed or self.gone[step["name"]]
        return failed

    def job(self, path: Path, name: str) -> int:
        """The same of a job of a workflow file, in a folder that is checked out; its event must be the job's."""
        workflow = read(path)
        job = workflow["jobs"][name]
        assert job["if"] == f"github.event_name == '{self.github['event_name']}'"
        self.env = workflow.get("env", {}) | self.env
        for step in job["steps"]:
            failed = 0
            if step.get("uses", "").endswith("actions/gate"):
                self.inputs = {key: self._filled(str(value)) for key, value in step["with"].items()}
                failed = self.run()
            elif "run" in step:
                failed = self._step(step)
            if failed:
                return failed
        return 0

    def shell(self, line: str) -> int:
        return self._step({"run": line})

    def _step(self, step: dict[str, Any]) -> int:
        script = self.folder / "step.sh"
        script.write_text(step["run"])
        done = subprocess.run(
            [*SHELL, str(script)], cwd=self.folder, env=self._environment(step), capture_output=True, text=True,
            timeout=1200,
        )  # fmt: skip
        self.said += done.stdout + done.stderr
        written = self.folder / "github_output"
        lines = written.read_text().splitlines() if written.exists() else []
        self.outputs |= dict(line.split("=", 1) for line in lines)
        return done.returncode

    def _environment(self, step: dict[str, Any]) -> dict[str, str]:
        given = {name: self._filled(str(value)) for name, value in step.get("env", {}).items()}
        return os.environ | given | {
            "PATH": f"{self._commands()}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), str(self.folder), os.environ.get("PYTHONPATH")))),
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "GITHUB_ACTION_PATH": str(ACTION.parent),
            "RUNNER_TEMP": str(self.folder / "temporary"),
            "GITHUB_PATH": str(self.folder / "github_path"),
            "GITHUB_OUTPUT": str(self.folder / "github_output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "github_summary"),
        }  # fmt: skip

    def _filled(self, text: str) -> str:
        text = re.sub(r"\$\{\{ env\.(\w+) \}\}", lambda found: self.env[found[1]], text)
        text = re.sub(r"\$\{\{ github\.([\w.]+) \}\}", lambda found: self.github.get(found[1], ""), text)
        text = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: self.inputs[found[1]], text)
        return re.sub(r"\$\{\{ steps\.gate\.outputs\.(\w+) \}\}", lambda found: self.outputs.get(found[1], ""), text)

    def _commands(self) -> Path:
        """The console commands as pip would install them; a `python` that makes hollow environments and only writes
        down what pip was asked; a `gh` that keeps the comments of a pull request in a file."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        scripts = {name: f'exec "{sys.executable}" -m {module} "$@"' for name, module in COMMANDS.items()}
        scripts["python"] = PYTHON.format(folder=self.folder, python=sys.executable)
        scripts["pip"] = f'echo "-m pip $@" >> "{self.folder}/pip"'
        scripts["gh"] = f'exec "{sys.executable}" "{Path(__file__).with_name("github_cli.py")}" "{self.folder}" "$@"'
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        return folder
