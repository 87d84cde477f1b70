"""A public function refuses keywords that it does not have, in one line that names the nearest one."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from accuracy.core.errors import unknown
from accuracy.core.fields import FIELDS, PROBLEM

P = ParamSpec("P")
T = TypeVar("T")
OF_PROBLEM = tuple(each.name for each in FIELDS if each.role == PROBLEM)
"""What a function takes with `**problem`."""


def entry(more: Iterable[str] = ()) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator of a public function. more: the keywords that it takes beside those of its signature. The
    function then raises ConfigError, a ValueError, for any other keyword."""

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
