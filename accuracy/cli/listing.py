"""`accuracy --help`: every group and choice with its one-line description, as found on disk. Imports no torch."""

import argparse
import difflib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accuracy.cli import commands
from accuracy.core.paths import CONFIGS

USAGE = """accuracy: how accurate is distributed attention? Every variant against float64, per rank and per tensor.

usage: accuracy [experiment=NAME] [KEY=VALUE ...] [KEY=[VALUE,VALUE] ...]
       accuracy COMMAND ...

  accuracy experiment=demo                                        one minute on a CPU, writes a report
  accuracy variant=[ring,zigzag] dtype=bfloat16 world_size=[1,2,4,8]
  accuracy experiment=world_size_growth dry_run=true              print the plan, measure nothing
  accuracy -m variant=ring,zigzag hydra/launcher=...              Hydra's sweeps and launchers, one run a job
  accuracy --config-dir=MINE variant=mine                         parts of your own: MINE/variant/mine.yaml and mine.py

Any knob given a list becomes an axis of the grid. Quote lists with spaces or brackets that your shell would expand.
"""


def text(folders: Sequence[Path]) -> str:
    """The whole help, groups of user folders included."""
    places = (CONFIGS, *folders)
    sections = [USAGE, commands.text()]
    for group in sorted({path.parent.name for place in places for path in place.glob("*/*.yaml")}):
        files = sorted(choices(group, places).items())
        width = max(len(name) for name, _ in files)
        sections.append("\n".join([f"{group}:", *(f"  {name:{width}}  {description(path)}" for name, path in files)]))
    lines = (CONFIGS / "config.yaml").read_text().splitlines()
    first, last = (next(i for i, line in enumerate(lines) if line.startswith(key)) for key in ("name:", "hydra:"))
    keys = "\n".join(f"  {line}" for line in lines[first:last]).rstrip()
    return "\n\n".join([*sections, f"Keys and their defaults (config.yaml):\n{keys}", "Hydra's own: --hydra-help"])


def nearest_key(name: str) -> str:
    """The key of the configuration that a wrong one was meant to be; "" where none is near. `mask` is problem.mask."""
    import yaml  # type: ignore[import-untyped]  # here: the help does without

    files = {"": "config.yaml", "problem.": "problem/small.yaml"}
    known = [f"{group}{key}" for group, file in files.items() for key in _keys(yaml.safe_load((CONFIGS / file).open()))]
    same = [key for key in known if key.rpartition(".")[2] == name]
    return next(iter([*same, *difflib.get_close_matches(name, known, n=1)]), "")


def _keys(node: Mapping[str, Any]) -> Iterator[str]:
    """Every key of a file, those of its groups with dots."""
    for key, value in node.items():
        yield key
        if isinstance(value, Mapping):
            yield from (f"{key}.{each}" for each in _keys(value))


def show(text: str) -> None:
    """Print the help; whoever reads it, as `head`, may stop before its end."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
