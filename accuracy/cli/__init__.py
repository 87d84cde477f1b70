"""One small file per console command."""

import sys
from collections.abc import Callable

from accuracy.core.errors import ConfigError

USAGE_ERROR = 2


def status_of(
    command: str,
    work: Callable[[], int | None],
    mistakes: tuple[type[Exception], ...] = (ConfigError,),
    text: Callable[[Exception], str] = str,
) -> int:
    """A command's exit status; a user's mistake, and a file that cannot be used, is one line and status 2."""
    try:
        return work() or 0
    except mistakes as error:
        print(f"{command}: {text(error)}", file=sys.stderr)
    except OSError as error:
        print(
            f"{command}: {error.filename} cannot be read or written ({error.strerror}); choose another", file=sys.stderr
        )
    return USAGE_ERROR
