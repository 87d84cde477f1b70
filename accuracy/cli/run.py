"""The console command `accuracy`: help and version answer before Hydra is imported."""

import gc
import os
import sys

from accuracy import __version__
from accuracy.cli import commands, listing, status_of


def attended() -> None:
    """`main`, in a process that another one attends: a case that ends it is a failed row, and the run goes on. A launch
    attends its processes itself."""
    if commands.is_command(sys.argv[1:]):
        sys.exit(status_of("accuracy", lambda: commands.run(sys.argv[1:])))
    from accuracy.execute import attend
    from accuracy.execute.ranks.launch import NAMES

    gc.disable()  # what is imported stays, and to look through it again and again takes a quarter of a second
    launched = any(all(name in os.environ for name in names) for names in NAMES.values())
    if launched or {"-h", "--help", "--version"} & set(sys.argv[1:]):
        main()
    else:
        sys.exit(attend.attended(_status))


def _status() -> int:
    from accuracy.cli.launched import start_server_of

    try:
        start_server_of(sys.argv[1:])
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def main() -> None:
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
        from accuracy.cli.application import start

        sys.exit(start(arguments))
