"""What `accuracy` does beyond help: a Hydra application that plans, measures, and writes the report."""

import gc
import os
import re
import signal
import sys
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from accuracy.cli import USAGE_ERROR, internal, listing, own_parts, sweep, unusable
from accuracy.cli.composing import composed_once
from accuracy.cli.launched import as_rank, import_later, speaks, tell, tell_done
from accuracy.config import hold, replay, worlds
from accuracy.core.errors import ConfigError, NoRendezvous, RanksEnded, printable, unknown
from accuracy.core.paths import CONFIGS
from accuracy.execute import start as processes

if TYPE_CHECKING:
    from accuracy.config.read import Configuration
    from accuracy.execute.plan import Planned
    from accuracy.execute.start import Launch

NOTHING_MEASURED, FAULTY, INTERRUPTED = 3, 5, 130
GROUPS = "variant", "kernel", "inputs", "problem", "precision", "world", "experiment"
DIAGNOSE = "diagnose"  # the experiment whose exit status says what it found
MISTAKES = ConfigError, HydraException, OmegaConfBaseException, YAMLError


def start(arguments: list[str]) -> int:
    """The exit status of these words, see `accuracy.cli.run`."""
    try:
        return as_rank(lambda launch: _run_application(arguments, launch))
    except ConfigError as error:
        return _complain(error)
    except Exception as error:
        return internal("accuracy", error)


class JobEnded(Exception):
    """How a job that a launcher ran in another process has ended: its exit status."""


def _run_application(arguments: list[str], launch: "Launch | None") -> int:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors over instead of printing them
    if launch is None:  # a launcher sends it before it starts all processes anew: that must not take long
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is measured stays, and is reported
    statuses: list[int] = []
    started: list[int] = []
    process = os.getpid()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; write KEY=VALUE, or see accuracy --hydra-help for flags")

    def job(config: DictConfig) -> None:
        started.append(os.getpid())
        statuses.append(_run_job(config, launch))
        if os.getpid() != process and statuses[-1]:
            raise JobEnded(statuses[-1])

    try:
        parser = get_args_parser()
        parser.error = refuse  # type: ignore[method-assign]  # Hydra's own answer is its usage, many lines long
        parser.parse_args(arguments)
        _check_choices(arguments)
        own_parts.check_sizes(listing.folders_of(arguments))
        sys.argv[1:] = sweep.prepared(arguments)
        with composed_once(arguments):
            hydra.main(config_path=str(CONFIGS), config_name="config", version_base="1.3")(job)()
    except JobEnded as ended:
        statuses.append(ended.args[0])
        print(f"accuracy: a job ended with status {ended.args[0]}; its launcher's log says why", file=sys.stderr)
    except (*MISTAKES, ValueError, OSError) as error:  # ValueError: Hydra's for `kernel=null`; OSError: of its folders;
        if started and not isinstance(error, MISTAKES):  # from inside a job it is our bug
            raise
        if isinstance(error, OSError) and error.strerror:
            error = ConfigError(unusable(error))
        statuses.append(_complain(error))
    return max(statuses, default=0)


def _run_job(config: DictConfig, launch: "Launch | None") -> int:
    """Hydra calls it once, or once for each job of a sweep, where a mistake in one leaves the others alone; a launcher
    may do so in processes of its own, several a job."""

    def checked(launch: "Launch | None") -> int:
        folders, words = user_folders(), HydraConfig.get().overrides.task
        _check_groups(words)
        own_parts.check_first_lines(folders)
        quoted = (f"'{word}'" if "[" in word else word for word in words)
        command = [*(f"--config-dir={folder}" for folder in folders), *quoted]
        plain: Any = OmegaConf.to_container(config, resolve=True)
        given = {word.partition("=")[0].lstrip("+") for word in words}
        plain = hold.held(plain, given)
        if "world" not in given:
            plain = worlds.settle(plain)
        plain = replay.settle(plain, words)
        return measure(sweep.placed(plain), folders, command, launch)

    try:
        return as_rank(checked) if launch is None else checked(launch)
    except (ConfigError, OmegaConfBaseException) as error:
        return _complain(error)
    except OSError as error:
        if error.filename is None or error.strerror is None:
            return internal("accuracy", error)
        return _complain(ConfigError(unusable(error)))
    except Exception as error:
        return internal("accuracy", error)


def _check_choices(words: Iterable[str]) -> None:
    """A list of choices holds names: of anything else Hydra makes a traceback. What cannot be read, it says itself."""
    for word in words:
        group, _, value = word.partition("=")
        if group.lstrip("+") not in GROUPS or not value.startswith("["):
            continue
        with suppress(HydraException):
            names = OverridesParser.create().parse_override(word).value()
            if isinstance(names, list) and not all(isinstance(name, str) for name in names):
                raise ConfigError(f"{word} is no list of names (accuracy --help lists all of {group})")


def _check_groups(words: Iterable[str]) -> None:
    """These groups set the same keys in each choice: of several, Hydra would keep the last and say nothing."""
    for word in words:
        group, _, value = word.partition("=")
        if group in GROUPS and "/" in value:
            raise ConfigError(f"{word} names no choice of {group}: no name has a / (accuracy --help lists all)")
        if group in ("problem", "precision", "experiment") and value.startswith("[") and "," in value:
            raise ConfigError(f"{word} is no axis of the grid; choose one, give lists to its keys ({group}.KEY=[..])")


def _complain(error: BaseException) -> int:
    if speaks() or isinstance(error, NoRendezvous):
        print(f"accuracy: {printable(one_line(error))}", file=sys.stderr)
    return USAGE_ERROR


def user_folders() -> list[Path]:
    """Folders on Hydra's search path beside the package's own: where users keep parts."""
    sources = HydraConfig.get().runtime.config_sources
    found = [Path(source.path) for source in sources if source.schema == "file" and source.path]
    return [path for path in found if path.resolve() != CONFIGS.resolve()]


def measure(config: Any, folders: list[Path], command: list[str], launch: "Launch | None" = None) -> int:
    """Plan, measure, report; the exit status. Raises ConfigError before any work."""
    from accuracy.config.read import read

    configuration = read(config, folders)
    if launch is not None and configuration.world != "processes":
        raise ConfigError(
            f"{launch.by} started {launch.size} processes, but world={configuration.world} needs one;"
            f" use world=processes, or start accuracy without {launch.by}"
        )
    if (
        launch is None and processes.only_workers_measure and not configuration.dry_run
    ):  # both import torch, at the same time
        of_ranks = configuration.world == "processes"
        processes.start_server(processes.OF_RANKS if of_ranks else processes.OF_WORKERS)
    from accuracy.execute.settle import settled  # torch is imported only now: help and mistakes answer at once
    from accuracy.runtime import arithmetic, device

    configuration = settled(configuration)
    arithmetic.make_exact()
    free = device.free_bytes(configuration.device)
    with arithmetic.computing_with(configuration.threads, configuration.device):
        return _measure(configuration, config, command, launch, free)


def _measure(
    configuration: "Configuration", config: Any, command: list[str], launch: "Launch | None", free: int | None
) -> int:
    from accuracy.cli import plan_text
    from accuracy.execute import run
    from accuracy.execute.dispatch import fitting_workers
    from accuracy.execute.folder import make_writable, opened
    from accuracy.execute.plan import plan, ranks_here

    if not gc.isenabled():  # `run.command`: what stays is imported
        gc.freeze()
        gc.enable()
    plans = plan(configuration, free, ranks_here(configuration.device) if launch is None else launch.size)
    configuration = replace(configuration, workers=fitting_workers(configuration, plans, free))
    folder = run.folder_of(configuration, config)
    first = launch is None or launch.rank == 0
    if configuration.dry_run:
        if first:
            print(plan_text.plan(plans, folder))
        return 0
    if first and configuration.reference_folder is not None:
        make_writable("reference.folder", configuration.reference_folder)
    with opened(folder, configuration.device) if first else nullcontext():
        return _carry_out(configuration, config, plans, folder, command, launch)


def _carry_out(
    configuration: "Configuration",
    config: Any,
    plans: "list[Planned]",
    folder: Path,
    command: list[str],
    launch: "Launch | None",
) -> int:
    """Measure what is planned and report, as this process's part of it; the exit status."""
    from accuracy.cli import conclusion, plan_text
    from accuracy.execute import run
    from accuracy.execute.dispatch import Launched, task_of

    launched = None
    if launch is not None:  # the launched processes as ranks, with the same cases on each
        from accuracy.execute.ranks import rank_loop
        from accuracy.execute.ranks.rendezvous import join_launched

        task = task_of(configuration, folder, plans, launch.size)
        launched = Launched(join_launched(launch, task.backend, task.sizes, task.digest), task)
        tell(folder, task.seconds)
        if launched.ranks.rank > 0:
            rank_loop.follow(task, launched.ranks)
            tell_done()
            return 0
    print(plan_text.plan_line(plans, configuration.device, configuration.workers), file=sys.stderr)
    modules = ["accuracy.verdict.diagnosis", *(["accuracy.report.build"] if configuration.report else [])]
    begun = import_later(*modules) if configuration.workers > 1 or processes.only_workers_measure else None
    try:
        outcome = run.execute(configuration, config, plans, folder, command, launched, begun=begun)
    except RanksEnded as ended:
        print(f"accuracy: {ended}", file=sys.stderr)
        return NOTHING_MEASURED
    tell_done()
    print(plan_text.outcome(outcome))
    verdicts = None
    if configuration.report and not sweep.noted(folder):
        verdicts = conclusion.report(outcome)
    if outcome.interrupted:
        return INTERRUPTED
    if not outcome.ok + outcome.earlier_ok:
        return NOTHING_MEASURED
    if configuration.name != DIAGNOSE:
        return 0
    is_bug, one_rank = conclusion.diagnosed(outcome, {each.case.id for each in plans}, verdicts)
    return FAULTY if is_bug else NOTHING_MEASURED if one_rank else 0


def one_line(error: BaseException) -> str:
    """An error's message without line breaks; Hydra's say in many lines what fits in one."""
    while not str(error).strip() and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} cannot be read ({_joined(str(error))}); write KEY=VALUE or KEY=[VALUE,VALUE]"
    if choice := re.match(r"(?:In '.*?': )?Could not (?:find|load) '(\w+)/([^']*)'", str(error)):
        group, name = choice.groups()
        return str(unknown(group, name, listing.choices(group, (CONFIGS, *listing.folders_of(sys.argv[1:])))))
    if key := re.match(r"Could not override '([^']*)'", str(error)):
        near = listing.nearest_key(key[1])
        hint = f"; did you mean {near}?" if near else ""
        return f"key {key[1]!r} is unknown{hint} (accuracy --help lists every choice and key)"
    message = str(error).partition("Config search path")[0].replace("In 'config': ", "")
    return f"{_joined(message)} (accuracy --help lists every choice and key)"


def _joined(message: str) -> str:
    lines = [line.strip() for line in message.partition("See https://")[0].splitlines() if line.strip()]
    return ", ".join(lines).replace(":,", ":").replace(", ;", ";")
