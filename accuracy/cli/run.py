"""The console command `accuracy`: a subcommand, help or version answers before Hydra is imported."""

import gc
import importlib
import os
import sys
from collections.abc import Sequence

from accuracy import __version__
from accuracy.cli import listing, show, status_of
from accuracy.core.errors import ConfigError, unknown
from accuracy.core.paths import CONFIGS


def command() -> None:
    """Run one of accuracy's commands, or `main` as a process that measures nothing itself: a case that hangs or ends
    the process that measures it is a failed row."""
    if is_subcommand(sys.argv[1:]):
        sys.exit(status_of("accuracy", lambda: subcommand(sys.argv[1:])))
    gc.disable()  # what is imported stays, and to look through it again and again takes a quarter of a second
    main(only_workers_measure=True)


def is_subcommand(arguments: Sequence[str]) -> bool:
    """Whether the first word is meant as a subcommand: it has no `=` and no sign of Hydra's."""
    return bool(arguments) and "=" not in arguments[0] and arguments[0][:1].isalpha()


def subcommand(arguments: Sequence[str]) -> int:
    """Run `main` of `accuracy/cli/NAME.py`, NAME the first word, with the other words; its exit status. Raises
    ConfigError for an unknown name."""
    name, *words = arguments
    if name in listing.choices("experiment", (CONFIGS,)):
        raise ConfigError(f"{name} is an experiment; write accuracy experiment={name}")
    if name not in listing.COMMANDS:
        raise unknown("command (what is measured is written KEY=VALUE)", name, listing.COMMANDS)
    status: int = importlib.import_module(f"accuracy.cli.{name}").main(words)
    return status


def main(only_workers_measure: bool = False) -> None:
    """Exit status: 0 measured; 2 a mistake in the configuration; 3 nothing could be measured, or experiment=diagnose
    had one rank alone of several; 5 it found a tensor that is invalid or wrong at any precision; 130 interrupted."""
    arguments = sys.argv[1:]
    if os.getcwd() not in sys.path:  # as `python -m accuracy` has it: variant.fn=my_module.function
        sys.path.insert(0, os.getcwd())
    if {"-h", "--help"} & set(arguments):
        folders, named = listing.folders_of(arguments), [each[11:] for each in arguments if each[:11] == "experiment="]
        help_of = (lambda: listing.of_experiment(named[-1], folders)) if named else (lambda: listing.text(folders))
        sys.exit(status_of("accuracy", lambda: show(help_of())))
    elif "--version" in arguments:  # Hydra would print its own
        show(f"accuracy {__version__}")
    else:
        from accuracy.cli import application
        from accuracy.execute import start

        start.only_workers_measure |= only_workers_measure
        sys.exit(application.start(arguments))
