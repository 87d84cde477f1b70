"""A user's mistake: said in one line, before any work, with exit status 2."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """What was given, what is allowed, what to do: one line."""


class NoRendezvous(ConfigError):
    """A process of a launch finds no other one: each of them says so."""


def unknown(what: str, given: object, allowed: Iterable[str]) -> ConfigError:
    """`what` does not know `given`; names what is allowed and, if one is close, the likely word."""
    allowed = sorted(allowed)
    close = difflib.get_close_matches(str(given), allowed, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return ConfigError(f"{what} {given!r} is unknown; allowed: {', '.join(allowed) or 'none'}{hint}")
