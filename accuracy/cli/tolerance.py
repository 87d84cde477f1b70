"""`accuracy tolerance`: which tolerance should a test of attention use, and what does it still catch?"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accuracy.cli import Parser, status_of
from accuracy.core.errors import ConfigError, unknown

EXAMPLES = """examples:
  accuracy tolerance q_shape=1,1024,8,64 dtype=bfloat16
  accuracy tolerance q_shape=2,512,8,128 heads_kv=2 dtype=float16 inputs=peaked mask=full against=float32
  accuracy tolerance q_shape=1,1024,8,64 dtype=bfloat16 kernel=torch_flash seeds=20
keys: q_shape, dtype, keys, heads_kv, inputs, kernel (a list with commas), mask, softmax_scale, against, seeds, device
"""


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
    print("         atol     rtol  relative  row rms  false alarms      least factor noticed    wrong answers")
    for row in rows.to_dict("records"):
        print(_line(row))
    print("atol and rtol: of every element; relative: of norms; row rms: of a head of a token; noticed in every run")


def _line(row: Mapping[Any, Any]) -> str:
    faults = {"zeros": "zeros", "shifted": "shifted", "dropped_key": "a dropped key"}
    missed = [text for name, text in faults.items() if row[name] is False]
    alarms = f"{row['false_alarms']} of {row['runs']} (<= {row['at_most']:.2g})"
    any_of = _factor(row["least_factor"])
    elements = _factor(row["least_factor_elements"])
    said = f"passes {', '.join(missed)}" if missed else "all refused"
    bounds = "{tensor:4}{atol:9.2g}{rtol:9.2g}{relative:10.2g}{row_rms:9.2g}".format_map(row)
    return f"{bounds}  {alarms:18}{any_of:>8}, elements {elements:8}  {said}"


def _factor(value: float | None) -> str:
    return "none" if value is None or value != value else f"1+{value:.2g}"
