"""The console command `accuracy`: a Hydra application that plans, measures, and writes the report."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from accuracy.command import listing
from accuracy.errors import ConfigError
from accuracy.locations import CONFIGS

USAGE_ERROR, NOTHING_MEASURED, INTERRUPTED = 2, 3, 130


def main() -> None:
    """Exit status: 0 measured; 2 a mistake in the configuration; 3 nothing could be measured; 130 interrupted."""
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        print(listing.text(listing.folders_of(arguments)))
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors over instead of printing them
    statuses: list[int] = []

    def job(config: DictConfig) -> None:
        statuses.append(_run_job(config))

    try:
        hydra.main(config_path=str(CONFIGS), config_name="config", version_base="1.3")(job)()
    except (HydraException, OmegaConfBaseException) as error:
        statuses.append(_complain(error))
    sys.exit(max(statuses, default=0))


def _run_job(config: DictConfig) -> int:
    """One run: Hydra calls it once, or once for each job of a sweep, where a mistake in one leaves the others alone."""
    try:
        return measure(OmegaConf.to_container(config, resolve=True), user_folders(), overrides())
    except (ConfigError, OmegaConfBaseException) as error:
        return _complain(error)


def _complain(error: BaseException) -> int:
    print(f"accuracy: {one_line(error)}", file=sys.stderr)
    return USAGE_ERROR


def user_folders() -> list[Path]:
    """Folders on Hydra's search path beside the package's own: where users keep parts."""
    sources = HydraConfig.get().runtime.config_sources
    found = [Path(source.path) for source in sources if source.schema == "file" and source.path]
    return [path for path in found if path.resolve() != CONFIGS.resolve()]


def overrides() -> list[str]:
    """What was given on the command line, for the command that repeats the run."""
    folders = [f"--config-dir={folder}" for folder in user_folders()]
    return [*folders, *(f"'{word}'" if "[" in word else word for word in HydraConfig.get().overrides.task)]


def measure(config: Any, folders: list[Path], command: list[str]) -> int:
    """Plan, measure, report; the exit status. Raises ConfigError before any work."""
    from accuracy import device, run  # torch is imported only now: help and spelling mistakes answer at once
    from accuracy.command import plan_text
    from accuracy.configuration import read
    from accuracy.grid import plan

    configuration = read(config, folders)
    device.make_arithmetic_exact()
    plans = plan(configuration, device.free_bytes(configuration.device))
    folder = run.folder_of(configuration, config)
    if configuration.dry_run:
        print(plan_text.plan(plans, folder))
        return 0
    run.open_folder(folder, configuration.device)
    print(plan_text.plan_line(plans, configuration.device), file=sys.stderr)
    outcome = run.execute(configuration, config, plans, folder, command)
    print(plan_text.outcome(outcome))
    if configuration.report:
        from accuracy.report.build import write_report

        summary = write_report(folder)
        print("\n".join(["", *summary.lines, "", f"report: {summary.path}"]))
    if outcome.interrupted:
        return INTERRUPTED
    return 0 if outcome.ok + outcome.earlier else NOTHING_MEASURED


def one_line(error: BaseException) -> str:
    """An error's message without line breaks; Hydra's say in many lines what fits in one."""
    while not str(error).strip() and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ConfigError):
        return str(error)
    unknown_key = re.match(r"Could not override '([^']*)'", str(error))
    if unknown_key:
        return f"key {unknown_key[1]!r} is unknown (accuracy --help lists every choice and key)"
    message = str(error).partition("Config search path")[0].partition("See https://")[0]
    message = message.replace("In 'config': ", "").replace("\nAvailable options in", "; allowed in")
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = ", ".join(lines).replace(":,", ":").replace(", ;", ";")
    return f"{text} (accuracy --help lists every choice and key)"
