"""What can be chosen, as found on disk: `accuracy --help` lists every group and choice with its one-line description.

Whether the YAML files of a user's folder of parts are fit to be read is checked here too: Hydra reads them before any
other check of ours. Imports no torch.
"""

import argparse
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accuracy.core.errors import ConfigError, unknown
from accuracy.core.paths import CONFIGS

COMMANDS = {
    "accept": "make a finished run the baseline of later ones",
    "check": "compare a run with its baseline: did attention get less accurate?",
    "judge": "hold a captured training run against float64, layer by layer",
    "reduce": "cut a failing capture down to the least that still fails, with a script that shows it",
    "report": "rebuild report.html from a run's tables",
    "tolerance": "tell which tolerance a test of attention should use, and what it still catches",
}
"""What each does, by name: `accuracy NAME` runs `main` of `accuracy/cli/NAME.py`."""

USAGE = """accuracy: how accurate is distributed attention? Every variant against float64, per rank and per tensor.

usage: accuracy [experiment=NAME] [KEY=VALUE ...] [KEY=[VALUE,VALUE] ...]
       accuracy COMMAND ...

  accuracy experiment=demo                                        one minute on a CPU, writes a report
  accuracy variant=[ring,zigzag] dtype=bfloat16 world_size=[1,2,4,8]
  accuracy experiment=world_size_growth dry_run=true              print the plan, measure nothing
  accuracy -m variant=ring,zigzag                                 Hydra's sweeps, one run a job
  accuracy --config-dir=MINE variant=mine                         parts of your own: MINE/variant/mine.yaml and mine.py

Any knob given a list becomes an axis of the grid. Quote lists with spaces or brackets that your shell would expand.

See also: accuracy --help experiment=NAME (how many cases it has); accuracy COMMAND --help; in Python
help(accuracy); in pytest the fixture accuracy_gate. Words are completed after eval "$(accuracy -sc install=bash)".
"""


def text(folders: Sequence[Path]) -> str:
    """The whole help, groups of user folders included."""
    places = (CONFIGS, *folders)
    sections = [USAGE, commands()]
    for group in sorted({path.parent.name for place in places for path in place.glob("*/*.yaml")}):
        files = sorted(choices(group, places).items())
        width = max(len(name) for name, _ in files)
        sections.append("\n".join([f"{group}:", *(f"  {name:{width}}  {description(path)}" for name, path in files)]))
    lines = (CONFIGS / "config.yaml").read_text().splitlines()
    first, last = (next(i for i, line in enumerate(lines) if line.startswith(key)) for key in ("name:", "hydra:"))
    keys = "\n".join(f"  {line}" for line in lines[first:last]).rstrip()
    return "\n\n".join([*sections, f"Keys and their defaults (config.yaml):\n{keys}", "Hydra's own: --hydra-help"])


def of_experiment(name: str, folders: Sequence[Path]) -> str:
    """Return the text that tells what an experiment measures and how many cases it has."""
    from accuracy.config import grid, read, resolve  # here: the help of all does without torch

    known = choices("experiment", (CONFIGS, *folders))
    if name not in known:
        raise unknown("experiment", name, known)
    main = read.read(resolve.resolved(resolve.compose(f"experiment={name}", folders=folders), ()), folders)
    cases = len({case.id for part in (main, *main.also) for case in grid.cases_of(part)})
    told = f"{cases:,} cases; accuracy experiment={name} dry_run=true says which of them this machine can measure"
    return f"{description(known[name])}\n\n{told}"


def commands() -> str:
    """The subcommands as `accuracy --help` lists them."""
    width = max(map(len, COMMANDS))
    lines = (f"  accuracy {name:{width}}  {what}" for name, what in COMMANDS.items())
    return "\n".join(["commands (each has --help; words with = go to Hydra):", *lines])


def nearest_key(name: str) -> str:
    """The key of the configuration that a wrong one was meant to be; "" where none is near. `mask` is problem.mask."""
    import yaml  # type: ignore[import-untyped]  # here: the help does without

    files = {"": "config.yaml", "problem.": "problem/small.yaml"}
    known = [f"{group}{key}" for group, file in files.items() for key in _keys(yaml.safe_load((CONFIGS / file).open()))]
    known += [path.parent.name for path in CONFIGS.glob("*/*.yaml")]
    same = [key for key in known if key.rpartition(".")[2] == name]
    return next(iter([*same, *difflib.get_close_matches(name, known, n=1)]), "")


def _keys(node: Mapping[str, Any]) -> Iterator[str]:
    """Every key of a file, those of its groups with dots."""
    for key, value in node.items():
        yield key
        if isinstance(value, Mapping):
            yield from (f"{key}.{each}" for each in _keys(value))


def choices(group: str, places: Sequence[Path]) -> dict[str, Path]:
    """The YAML file of every choice of a group; a later folder's file hides an earlier one's of the same name."""
    return {path.stem: path for place in places for path in sorted((place / group).glob("*.yaml"))}


def description(path: Path) -> str:
    """The first comment line of a YAML file that is no directive."""
    comments = (line[1:].strip() for line in path.read_text().splitlines() if line.startswith("#"))
    return next((line for line in comments if not line.startswith("@")), "")


def folders_of(arguments: Sequence[str]) -> list[Path]:
    """The user folders named by --config-dir (or -cd)."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", action="append", type=Path, nargs="?", default=[])
    return [folder for folder in parser.parse_known_args(arguments)[0].config_dir if folder]


def check_first_lines(folders: Iterable[Path]) -> None:
    """A part copied with another's package line would measure under that one's name. Raises ConfigError."""
    for group in ("variant", "kernel", "inputs"):
        for path in (path for folder in folders for path in sorted((folder / group).glob("*.yaml"))):
            line = f"# @package {group}.{path.stem}"
            if line not in (given.strip() for given in path.read_text().splitlines()):
                raise ConfigError(f"{path}: its first line must be {line!r}, so that it is recorded under its own name")
