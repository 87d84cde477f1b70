"""The console command `accuracy`: a Hydra application that plans, measures, and writes the report."""

import os
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from accuracy import __version__
from accuracy.cli import listing, preload
from accuracy.cli.launched import as_rank, speaks, tell, tell_done
from accuracy.core.errors import ConfigError, NoRendezvous, unknown
from accuracy.core.paths import CONFIGS

if TYPE_CHECKING:
    from accuracy.config.read import Configuration
    from accuracy.execute.measure import Launched
    from accuracy.execute.plan import Planned
    from accuracy.execute.ranks.launch import Launch

USAGE_ERROR, NOTHING_MEASURED, INTERRUPTED = 2, 3, 130


def main() -> None:
    """Exit status: 0 measured; 2 a mistake in the configuration; 3 nothing could be measured; 130 interrupted."""
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        print(listing.text(listing.folders_of(arguments)))
        return
    if "--version" in arguments:  # Hydra would print its own
        print(f"accuracy {__version__}")
        return
    try:
        sys.exit(as_rank(lambda launch: _run_application(arguments, launch)))
    except ConfigError as error:
        sys.exit(_complain(error))


class JobEnded(Exception):
    """How a job that a launcher ran in another process has ended: its exit status."""


def _run_application(arguments: list[str], launch: "Launch | None") -> int:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors over instead of printing them
    if launch is None:  # a launcher sends it before it starts all processes anew: that must not take long
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is measured stays, and is reported
    statuses: list[int] = []
    process = os.getpid()
    started = False

    def job(config: DictConfig) -> None:
        nonlocal started
        started = True
        statuses.append(_run_job(config, launch))
        if os.getpid() != process and statuses[-1]:
            raise JobEnded(statuses[-1])

    try:
        _check_flags(arguments)
        hydra.main(config_path=str(CONFIGS), config_name="config", version_base="1.3")(job)()
    except JobEnded as ended:
        statuses.append(ended.args[0])
        print(f"accuracy: a job ended with status {ended.args[0]}; its launcher's log says why", file=sys.stderr)
    except (ConfigError, HydraException, OmegaConfBaseException, YAMLError) as error:
        statuses.append(_complain(error))
    except ValueError as error:  # Hydra's for `kernel=null`; one of ours from inside a job is a bug and shows as such
        if started:
            raise
        statuses.append(_complain(error))
    return max(statuses, default=0)


def _check_flags(arguments: list[str]) -> None:
    """Hydra's own parser would answer an unknown flag with its usage, many lines long."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; write KEY=VALUE, or see accuracy --hydra-help for flags")

    parser.error = refuse  # type: ignore[method-assign]
    parser.parse_args(arguments)


def _run_job(config: DictConfig, launch: "Launch | None") -> int:
    """One run: Hydra calls it once, or once for each job of a sweep, where a mistake in one leaves the others alone.

    A launcher may run it in processes of its own, several a job.
    """
    try:
        if launch is None:
            return as_rank(lambda launch: _checked_job(config, launch))
        return _checked_job(config, launch)
    except (ConfigError, OmegaConfBaseException) as error:
        return _complain(error)


def _checked_job(config: DictConfig, launch: "Launch | None") -> int:
    _check_groups(HydraConfig.get().overrides.task)
    check_package_lines(user_folders())
    return measure(OmegaConf.to_container(config, resolve=True), user_folders(), overrides(), launch)


def _check_groups(words: Iterable[str]) -> None:
    """These groups set the same keys in each choice: of several, Hydra would keep the last and say nothing."""
    for word in words:
        group, _, value = word.partition("=")
        if group in ("problem", "precision", "experiment") and value.startswith("[") and "," in value:
            raise ConfigError(
                f"{word} is no axis of the grid; choose one, and give lists to its keys ({group}.KEY=[..])"
            )


def _complain(error: BaseException) -> int:
    if speaks() or isinstance(error, NoRendezvous):
        print(f"accuracy: {one_line(error)}", file=sys.stderr)
    return USAGE_ERROR


def check_package_lines(folders: list[Path]) -> None:
    """Every part of a user fills the node of its own name: one copied with another's package line would measure under
    that one's name. Raises ConfigError."""
    for group in ("variant", "kernel", "inputs"):
        for path in (path for folder in folders for path in sorted((folder / group).glob("*.yaml"))):
            line = f"# @package {group}.{path.stem}"
            if line not in (given.strip() for given in path.read_text().splitlines()):
                raise ConfigError(f"{path}: its first line must be {line!r}, so that it is recorded under its own name")


def user_folders() -> list[Path]:
    """Folders on Hydra's search path beside the package's own: where users keep parts."""
    sources = HydraConfig.get().runtime.config_sources
    found = [Path(source.path) for source in sources if source.schema == "file" and source.path]
    return [path for path in found if path.resolve() != CONFIGS.resolve()]


def overrides() -> list[str]:
    """What was given on the command line, for the command that repeats the run."""
    folders = [f"--config-dir={folder}" for folder in user_folders()]
    return [*folders, *(f"'{word}'" if "[" in word else word for word in HydraConfig.get().overrides.task)]


def measure(config: Any, folders: list[Path], command: list[str], launch: "Launch | None" = None) -> int:
    """Plan, measure, report; the exit status. launch: by which this process is one of several. Raises ConfigError
    before any work."""
    from accuracy.config.read import read

    configuration = read(config, folders)
    if launch is not None and configuration.world != "processes":
        raise ConfigError(
            f"{launch.by} started {launch.size} processes, but world={configuration.world} needs one;"
            f" use world=processes, or start accuracy without {launch.by}"
        )
    if launch is None:
        preload.start(config)
    from accuracy.execute.settle import settled  # torch is imported only now: help and refused values answer at once
    from accuracy.runtime import arithmetic

    configuration = settled(configuration)
    arithmetic.make_exact()
    with arithmetic.computing_with(configuration.threads, configuration.device):
        return _measure(configuration, config, command, launch)


def _measure(configuration: "Configuration", config: Any, command: list[str], launch: "Launch | None") -> int:
    from accuracy.cli import plan_text
    from accuracy.execute import run
    from accuracy.execute.measure import fitting_workers
    from accuracy.execute.plan import plan
    from accuracy.execute.ranks.agent import RanksEnded
    from accuracy.runtime import device

    gpus = device.count() if configuration.device == "cuda" else None
    free = device.free_bytes(configuration.device)
    plans = plan(configuration, free, gpus if launch is None else launch.size)
    configuration = replace(configuration, workers=fitting_workers(configuration, plans, free))
    folder = run.folder_of(configuration, config)
    if launch is not None and launch.rank > 0:
        return 0 if configuration.dry_run else _take_part(configuration, folder, plans, launch)
    if configuration.dry_run:
        print(plan_text.plan(plans, folder))
        return 0
    run.open_folder(folder, configuration.device)
    if configuration.reference_folder is not None:
        run.make_writable("reference.folder", configuration.reference_folder)
    launched = None if launch is None else _launched(configuration, folder, plans, launch)
    print(plan_text.plan_line(plans, configuration.device, configuration.workers), file=sys.stderr)
    try:
        outcome = run.execute(configuration, config, plans, folder, command, launched)
    except RanksEnded as ended:
        print(f"accuracy: {ended}", file=sys.stderr)
        return NOTHING_MEASURED
    tell_done()
    print(plan_text.outcome(outcome))
    if configuration.report:
        print(_report(folder))
    if outcome.interrupted:
        return INTERRUPTED
    return 0 if outcome.ok + outcome.earlier_ok else NOTHING_MEASURED


def _take_part(configuration: "Configuration", folder: Path, plans: Sequence["Planned"], launch: "Launch") -> int:
    """A launched process other than the first: its rank's part in every case."""
    from accuracy.execute.ranks import rank_loop

    launched = _launched(configuration, folder, plans, launch)
    rank_loop.follow(launched.task, launched.ranks)
    tell_done()
    return 0


def _launched(configuration: "Configuration", folder: Path, plans: Sequence["Planned"], launch: "Launch") -> "Launched":
    """The launched processes as ranks, with the same cases on each. Raises ConfigError."""
    from accuracy.execute.measure import Launched, task_of
    from accuracy.execute.ranks.rendezvous import join_launched

    task = task_of(configuration, folder, plans, launch.size)
    ranks = join_launched(launch, task.backend, task.sizes, task.digest)
    tell(folder, task.seconds)
    return Launched(ranks, task)


def _report(folder: Path) -> str:
    """Write report.html; its most telling lines and where it is."""
    from accuracy.report.build import write_report
    from accuracy.report.folder import NoReport

    try:
        summary = write_report(folder)
    except NoReport as error:  # interrupted before the first case
        return f"no report: {error}"
    return "\n".join(["", *summary.lines, "", f"report: {summary.path}"])


def one_line(error: BaseException) -> str:
    """An error's message without line breaks; Hydra's say in many lines what fits in one."""
    while not str(error).strip() and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} cannot be read ({_joined(str(error))}); write KEY=VALUE or KEY=[VALUE,VALUE]"
    unknown_choice = re.match(r"(?:In '.*?': )?Could not (?:find|load) '(\w+)/([^']*)'", str(error))
    if unknown_choice:
        group, name = unknown_choice.groups()
        return str(unknown(group, name, listing.choices(group, (CONFIGS, *listing.folders_of(sys.argv[1:])))))
    unknown_key = re.match(r"Could not override '([^']*)'", str(error))
    if unknown_key:
        return f"key {unknown_key[1]!r} is unknown (accuracy --help lists every choice and key)"
    message = str(error).partition("Config search path")[0].replace("In 'config': ", "")
    return f"{_joined(message)} (accuracy --help lists every choice and key)"


def _joined(message: str) -> str:
    lines = [line.strip() for line in message.partition("See https://")[0].splitlines() if line.strip()]
    return ", ".join(lines).replace(":,", ":").replace(", ;", ";")
