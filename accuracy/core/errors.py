"""A user's mistake: said in one line, before any work, with exit status 2; texts that a terminal may be given."""

import difflib
import functools
import inspect
import os
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec, TypeVar

from accuracy.core.fields import FIELDS, PROBLEM
from accuracy.core.own_code import is_own

P = ParamSpec("P")
T = TypeVar("T")
OF_PROBLEM = tuple(each.name for each in FIELDS if each.role == PROBLEM)
"""Keywords that a public function takes in `**problem`."""


class ConfigError(ValueError):
    """What was given, what is allowed, what to do: one line. status: of a command that ends by it."""

    status = 2


class IncompleteRun(ConfigError):
    """A run whose rows are not those that it ended with, and that cannot be judged."""

    status = 3


class WrongResult(RuntimeError):
    """A result that no rounding explains: wrong shape or dtype, or memory that was not the variant's to write."""


NOT_SHARED = "so ranks cannot share its work"
"""In the reason of a case on several ranks of a function that is one of one device."""


class NotShared(RuntimeError):
    """A function of one device was to be shared by several ranks: a case that it does not support."""


class NoRendezvous(ConfigError):
    """A process of a launch finds no other one: each of them says so."""


class RanksEnded(RuntimeError):
    """The ranks of this machine do not come to a case."""


MOST_LETTERS = 100_000
"""Of what an exception says, and of its traceback."""


def one_line(error: BaseException) -> str:
    """An exception of anyone's, its kind and message without line breaks and control characters."""
    return f"{type(error).__name__}: {_message(error)}".strip()


def _message(error: BaseException) -> str:
    try:
        text = str(error)[:MOST_LETTERS]
    except Exception as other:  # of its own __str__
        text = f"its text cannot be had, {type(other).__name__}"
    return printable(" ".join(text.split()))


def located(error: BaseException) -> str:
    """`ValueError: what it says (my_package/ring.py:42, in attend)`: the last line that is in a file of the user's; no
    place where no such file took part."""
    text = f"{type(error).__name__}: {_message(error)}"[:400]
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith("<frozen") and is_own(Path(each.filename))]
    return f"{text} ({printable(_shown(own[-1].filename))}:{own[-1].lineno}, in {own[-1].name})" if own else text


def traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it, its end where it is long."""
    return "".join(traceback.format_exception(error))[-MOST_LETTERS:]


def _shown(name: str) -> str:
    """Below the current folder the path from there, else the name alone: the same from run to run."""
    path = Path(name)
    here = Path(os.path.abspath("."))
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def printable(text: str, instead: str = "?") -> str:
    """Text of others without control characters and escapes."""
    return "".join(letter if letter.isprintable() else instead for letter in text)


OTHER_WORDS = {
    "is_causal": ("causal", "mask"), "causal": ("mask",), "scale": ("softmax_scale",), "sm_scale": ("softmax_scale",),
    "window_size": ("window",), "cu_seqlens": ("documents",), "cu_seqlens_q": ("documents",),
    **dict.fromkeys(("alibi_slopes", "attn_bias", "attention_mask", "bias"), ("attn_mask",)), "s_aux": ("sinks",),
}  # fmt: skip
"""The field's words, and ours for them."""


def unknown(what: str, given: object, allowed: Iterable[str]) -> ConfigError:
    """`what` does not know `given`; names what is allowed and, if one is close, the likely word."""
    allowed = sorted(allowed)
    ours = [word for word in OTHER_WORDS.get(str(given), ()) if word in allowed]
    close = ours or difflib.get_close_matches(str(given), allowed, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return ConfigError(f"{what} {given!r} is unknown; allowed: {', '.join(allowed) or 'none'}{hint}")


def entry(more: Iterable[str] = ()) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator of a public function, which then raises ConfigError, a ValueError, for a keyword that it does
    not have, with the nearest one. more: the keywords that it takes beside those of its signature."""

    def decorated(fn: Callable[P, T]) -> Callable[P, T]:
        own = inspect.signature(fn).parameters.values()
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        allowed = [each.name for each in own if each.kind in kinds and each.name != "self"] + [*more]

        @functools.wraps(fn)
        def refusing(*arguments: P.args, **keywords: P.kwargs) -> T:
            __tracebackhide__ = True
            for name in keywords:
                if name not in allowed:
                    raise unknown(f"argument of {fn.__qualname__.removesuffix('.__init__')}", name, allowed)
            return fn(*arguments, **keywords)

        return refusing

    return decorated
