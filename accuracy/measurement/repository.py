"""From which commit is a user's function? The repositories of its files, and whether they have changed since.

In: the functions of a configuration. Out: by function, what run.json says of each.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy.core import own_code, plugins

if TYPE_CHECKING:
    from accuracy.config.read import Configuration


def of_functions(configuration: "Configuration") -> dict[str, Any]:
    """By name as configured: the digest of the function's code, and commit and dirty flag of each repository that holds
    files of it (None: no repository)."""
    grids = (configuration, *configuration.also)
    named = {str(dict(each.options)["fn"]) for grid in grids for each in grid.variants if "fn" in dict(each.options)}
    found = {name: plugins.load_function(name) for name in sorted(named)}
    return {
        name: {"code": each.code, "repositories": _repositories([path for path in each.files if own_code.is_own(path)])}
        for name, each in found.items()
    }


def _repositories(files: Sequence[Path]) -> list[dict[str, Any]]:
    """One for each repository, by the name of its folder; files outside of any are one without a commit."""
    by_top: dict[str, list[Path]] = {}
    tops = {folder: command("git", "-C", str(folder), "rev-parse", "--show-toplevel") for folder in _folders(files)}
    for path in files:
        by_top.setdefault(tops[path.resolve().parent], []).append(path.resolve())
    return [_repository(top, mine) for top, mine in sorted(by_top.items())]


def _folders(files: Sequence[Path]) -> set[Path]:
    return {path.resolve().parent for path in files}


def _repository(top: str, files: Sequence[Path]) -> dict[str, Any]:
    """dirty: a tracked file is not as committed, or one of these files is not tracked."""
    if not top:
        return {"repository": None, "git_commit": None, "dirty": None, "files": len(files)}
    git = ("git", "-C", top)
    changed = command(*git, "status", "--porcelain", "--untracked-files=no")
    mine = command(*git, "status", "--porcelain", "--ignored", "--", *map(str, files))
    commit = command(*git, "rev-parse", "--verify", "HEAD") or None
    return {
        "repository": Path(top).name, "git_commit": commit, "dirty": bool(changed or mine), "files": len(files),
    }  # fmt: skip


def command(*words: str) -> str:
    """What a command prints; nothing where it fails."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
