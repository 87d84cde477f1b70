"""`accuracy tolerance`: which tolerance should a test of attention use, and what does it still catch?"""

from collections.abc import Callable, Sequence
from typing import Any

from accuracy.cli import Parser, show, status_of
from accuracy.core.errors import ConfigError, unknown

EXAMPLES = """examples:
  accuracy tolerance q_shape=1,1024,8,64 dtype=bfloat16
  accuracy tolerance q_shape=2,512,8,128 heads_kv=2 dtype=float16 inputs=peaked mask=full against=float32
  accuracy tolerance q_shape=1,1024,8,64 dtype=bfloat16 kernel=torch_flash seeds=20
keys: q_shape, dtype, keys, heads_kv, inputs, kernel (a list with commas), mask, softmax_scale, against, seeds, device
"""
LEGEND = """
atol, rtol: of every element; relative: of norms; row_rms: of a head of a token; false_alarms: of so many runs, at most
that share of all; least_factor, and of single elements: 1 + it is noticed in every run; True: such a wrong answer is
refused"""


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.strip("()[]").split(",")]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in _words(text)]


KEYS: dict[str, Callable[[str], Any]] = {
    "q_shape": _numbers, "dtype": str, "keys": int, "heads_kv": int, "inputs": str, "kernel": _words, "mask": str,
    "softmax_scale": float, "against": str, "seeds": int, "device": str,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; 0, or 2 for a mistake in the command."""
    parser = Parser("accuracy tolerance", __doc__, EXAMPLES)
    parser.add_argument("words", nargs="+", metavar="KEY=VALUE")
    given = parser.parse_args(arguments)
    return status_of("accuracy tolerance", lambda: _advise(given.words))


def _read(words: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise ConfigError(f"{word!r} cannot be read; write KEY=VALUE, KEY one of {', '.join(KEYS)}")
        if key not in KEYS:
            raise unknown("key", key, KEYS)
        try:
            found[key] = KEYS[key](value)
        except ValueError:
            raise ConfigError(f"{word} is no number; write it as in q_shape=1,1024,8,64 seeds=8") from None
    for name in ("q_shape", "dtype"):
        if name not in found:
            raise ConfigError(f"{name} is missing; write q_shape=1,1024,8,64 dtype=bfloat16")
    return found


def _advise(words: Sequence[str]) -> None:
    found = _read(words)
    from accuracy.api.tolerance import tolerance  # torch is imported only now

    rows = tolerance(found.pop("q_shape"), found.pop("dtype"), **found)
    show(rows.to_string(index=False, float_format="{:.2g}".format), LEGEND)
