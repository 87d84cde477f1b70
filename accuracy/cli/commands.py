"""The subcommands of `accuracy`. Words with `=` and flags of Hydra are no subcommands: they say what to measure."""

import importlib
from collections.abc import Sequence

from accuracy.core.errors import unknown

COMMANDS = {
    "accept": "make a finished run the baseline of later ones",
    "check": "compare a run with its baseline: did attention get less accurate?",
    "judge": "hold a captured training run against float64, layer by layer",
    "publish": "copy a finished run into reports/ as evidence, with lean tables",
    "reduce": "cut a failing capture down to the least that still fails, with a script that shows it",
    "report": "rebuild report.html from a run's tables",
    "tolerance": "tell which tolerance a test of attention should use, and what it still catches",
}
"""What each does, by name: `accuracy NAME` runs `main` of `accuracy/cli/NAME.py`."""


def is_command(arguments: Sequence[str]) -> bool:
    """Whether the first word is meant as a subcommand: it has no `=` and no sign of Hydra's."""
    return bool(arguments) and "=" not in arguments[0] and arguments[0][:1].isalpha()


def run(arguments: Sequence[str]) -> int:
    """Run the subcommand that the first word names, with the other words; its exit status. Raises ConfigError for an
    unknown name."""
    name, *words = arguments
    if name not in COMMANDS:
        raise unknown("command (what is measured is written KEY=VALUE)", name, COMMANDS)
    status: int = importlib.import_module(f"accuracy.cli.{name}").main(words)
    return status


def text() -> str:
    """The subcommands as `accuracy --help` lists them."""
    width = max(map(len, COMMANDS))
    lines = (f"  accuracy {name:{width}}  {what}" for name, what in COMMANDS.items())
    return "\n".join(["commands (each has --help; words with = go to Hydra):", *lines])
