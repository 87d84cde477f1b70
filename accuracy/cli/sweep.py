"""`accuracy -m ...`: each job of a sweep says where it is, and one report of all of them is written at the end.

`hydra.sweep.dir` is respected: the report is there, and each job's folder below it as `hydra.sweep.subdir` says. Where
neither is given, the report is in outputs/sweep-DIGEST, and a job's folder is that of the same command alone.
"""

import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from accuracy.cli import status_of
from accuracy.cli.launched import speaks
from accuracy.core.case import digest

JOBS = ".jobs"  # in the sweep's folder: a line for each job that wants a report
SWEEPS = {"-m", "--multirun", "hydra.mode=MULTIRUN"}
OWN_FOLDER = "."  # hydra.sweep.subdir where a job finds a folder of its own


def prepared(arguments: list[str]) -> list[str]:
    """The arguments, with a folder for the sweep where none is given."""
    if not SWEEPS & {*arguments} or any(word.startswith("hydra.sweep.") for word in arguments):
        return arguments
    name = digest({"words": sorted(word for word in arguments if not word.startswith("-"))})[:8]
    return [*arguments, f"hydra.sweep.dir=outputs/sweep-{name}", f"hydra.sweep.subdir={OWN_FOLDER}"]


def check_jobs(arguments: list[str], folders: list[Path]) -> None:
    """Compose and read a job for each value of a sweep, so that a mistake in one is said before any has begun. Raises
    ConfigError, and what Hydra raises. folders: where users keep parts."""
    from accuracy.config.compose import compose
    from accuracy.config.read import read
    from accuracy.config.resolve import keys_of, replayed, resolved

    words = [word for word in arguments if "=" in word and not word.startswith(("-", "hydra"))]
    parsed = OverridesParser.create().parse_overrides(words)
    values = [[*each.sweep_string_iterator()] if each.is_sweep_override() else [] for each in parsed]
    keys = [each.get_key_element() for each in parsed]
    first = [f"{key}={each[0]}" if each else word for key, each, word in zip(keys, values, words, strict=True)]
    jobs = [[*first[:at], f"{keys[at]}={value}", *first[at + 1 :]] for at, each in enumerate(values) for value in each]
    for job in jobs:
        given = keys_of(job)
        read(resolved(replayed(compose(*job, folders=folders), given), given), folders)


def is_sweep(arguments: list[str]) -> bool:
    """Whether the words ask for one, of Hydra's own sweeper."""
    other = any(word.startswith(("hydra/launcher", "hydra/sweeper", "hydra.sweeper")) for word in arguments)
    return bool(SWEEPS & {*arguments}) and not other


def placed(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a sweep's job, in its folder of the sweep's; one of a run is as it is."""
    if not _sweeps() or HydraConfig.get().sweep.subdir == OWN_FOLDER:
        return config
    return {**config, "output_dir": config["output_dir"] or HydraConfig.get().runtime.output_dir}


def noted(folder: Path) -> bool:
    """Whether this is a job of a sweep, whose folder is now known to the sweep's report."""
    if not _sweeps():
        return False
    with open(Path(HydraConfig.get().sweep.dir) / JOBS, "a", encoding="utf-8") as file:
        file.write(f"{folder.resolve()}\n")
    return True


def _sweeps() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


class JointReport(Callback):
    """Hydra calls it in the process that starts a sweep: configs/config.yaml names it."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Forget what a sweep that was killed left."""
        if speaks():
            (Path(config.hydra.sweep.dir) / JOBS).unlink(missing_ok=True)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Write and tell of the report, where a job wants one."""
        if speaks():
            status_of("accuracy", lambda: _report(Path(config.hydra.sweep.dir)))  # Hydra would drop an error


def _report(folder: Path) -> None:
    from accuracy.report.build import write_report
    from accuracy.report.folder import write_sweep

    if not (folder / JOBS).is_file():
        return
    jobs = sorted({*(folder / JOBS).read_text(encoding="utf-8").splitlines()})
    (folder / JOBS).unlink()
    write_sweep(folder, ["accuracy", *sys.argv[1:]], [Path(job) for job in jobs])
    summary = write_report(folder)
    print("", *summary.lines, "", f"report of {len(jobs)} jobs: {summary.path}", sep="\n")
