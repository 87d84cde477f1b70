"""One small file per console command; how each of them ends."""

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from accuracy.core.errors import ConfigError, one_line, printable
from accuracy.core.paths import ADDRESS

USAGE_ERROR, NOTHING_MEASURED, FAULTY, INTERNAL_ERROR, INTERRUPTED = 2, 3, 5, 70, 130
"""Exit statuses of commands; those of `accuracy check` are `accuracy.gate.Exit`."""
REPORT_IT = f"report it at {ADDRESS}/issues" if ADDRESS else "report it"


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with a command's words; shows the command's description as it is written."""

    def __init__(self, prog: str, description: str | None, epilog: str | None = None) -> None:
        super().__init__(prog, None, description, epilog, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(USAGE_ERROR, f"{self.prog}: {printable(message)} ({self.prog} --help says what is allowed)\n")


def whole(text: str) -> int:
    """An argument that counts something."""
    if not text.isdecimal() or not 1 <= int(text[:20]) < 2**31:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from 1")
    return int(text)


def path_of(text: str) -> Path:
    """An argument that names a file or a folder."""
    if not text.strip() or "\0" in text or not (text.isprintable() or Path(text).exists()):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} names no file and no folder")
    return Path(text)


def show(*lines: object) -> None:
    """Print lines; whoever reads them, as `head`, may stop before their end, which is no mistake of the command."""
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def status_of(command: str, work: Callable[[], int | None]) -> int:
    """A command's exit status; a user's mistake, and a file that cannot be used, is one line and status 2 (of an
    incomplete run 3); an error of the program's own is one line, a file with the traceback, and status 70."""
    try:
        return work() or 0
    except ConfigError as error:
        print(f"{command}: {printable(str(error))}", file=sys.stderr)
        return error.status
    except OSError as error:
        if error.strerror is None:
            return internal(command, error)
        print(f"{command}: {unusable(error)}", file=sys.stderr)
    except Exception as error:
        return internal(command, error)
    return USAGE_ERROR


def unusable(error: OSError) -> str:
    """A file that the system refuses: it is missing, the disk is full or read-only, a quota is used up."""
    what = printable(str(error.filename)) if error.filename else "a file"
    advice = "make room or choose another place, what was measured stays"
    return f"{what} cannot be read or written ({error.strerror}); {advice}"


def internal(command: str, error: BaseException) -> int:
    """Say that the program is at fault, and where the traceback is; status 70."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix=f"{command}-", suffix=".txt", delete=False) as file:
            traceback.print_exception(error, file=file)
        where = f"attach {file.name}"
    except OSError:
        traceback.print_exception(error)
        where = "attach the lines above"
    print(f"{command}: internal error ({one_line(error)[:200]}); {REPORT_IT} and {where}", file=sys.stderr)
    return INTERNAL_ERROR
