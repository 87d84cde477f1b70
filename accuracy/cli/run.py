"""The console command `accuracy`: help and version answer before Hydra is imported."""

import gc
import os
import sys

from accuracy import __version__
from accuracy.cli import commands, listing, status_of


def command() -> None:
    """Run one of accuracy's commands, or `main` as a process that measures nothing itself: a case that hangs or ends
    the process that measures it is a failed row."""
    if commands.is_command(sys.argv[1:]):
        sys.exit(status_of("accuracy", lambda: commands.run(sys.argv[1:])))
    gc.disable()  # what is imported stays, and to look through it again and again takes a quarter of a second
    main(only_workers_measure=True)


def main(only_workers_measure: bool = False) -> None:
    """Exit status: 0 measured; 2 a mistake in the configuration; 3 nothing could be measured, or experiment=diagnose
    had one rank alone of several; 5 it found a tensor that is invalid or wrong at any precision; 130 interrupted."""
    arguments = sys.argv[1:]
    if os.getcwd() not in sys.path:  # as `python -m accuracy` has it: variant.fn=my_module.function
        sys.path.insert(0, os.getcwd())
    if {"-h", "--help"} & set(arguments):
        listing.show(listing.text(listing.folders_of(arguments)))
    elif "--version" in arguments:  # Hydra would print its own
        print(f"accuracy {__version__}")
    else:
        from accuracy.cli import application
        from accuracy.execute import start

        start.only_workers_measure |= only_workers_measure
        sys.exit(application.start(arguments))
