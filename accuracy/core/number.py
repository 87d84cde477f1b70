"""How is a number written in the report? Every function is total: missing, infinite and zero have a text."""

import math
from collections.abc import Iterable

MISSING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"


def as_float(value: object) -> float:
    """The value as a float; NaN for anything that is missing or no number."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def _special(value: float) -> str | None:
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    return "0" if value == 0 else None


def scientific(value: object, digits: int = 3) -> str:
    """`1.23e-4`: for errors, which span many orders of magnitude."""
    number = as_float(value)
    special = _special(number)
    if special is not None:
        return special
    mantissa, exponent = f"{number:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def plain(value: object, digits: int = 3) -> str:
    """`1.22`, `12.2`, `0.031`: for ratios and exponents; far from one it falls back to `scientific`."""
    number = as_float(value)
    special = _special(number)
    if special is not None:
        return special
    number = float(f"{number:.{digits - 1}e}")  # 0.9996 is 1.00, not 1.000
    size = abs(number)
    if size >= 1e5 or size < 1e-3:
        return scientific(number, digits)
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    return f"{number:.{decimals}f}" if size >= 1 else f"{number:.{min(decimals, digits)}f}"


def ratio(value: object) -> str:
    """`1.22` and a multiplication sign."""
    text = plain(value)
    return text if text == MISSING else f"{text}{TIMES}"


def signed(value: object) -> str:
    """An exponent with two decimals, `0.03` or `-0.02`, with a true minus sign."""
    number = as_float(value)
    if not math.isfinite(number):
        return str(_special(number))
    text = f"{abs(number):.2f}"
    return f"{MINUS}{text}" if number < 0 and float(text) > 0 else text


def seconds(value: object) -> str:
    """`1.23 s`, `12.3 ms`, `45 µs`."""
    number = as_float(value)
    if _special(number) is not None:
        return str(_special(number))
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(number) >= scale:
            return f"{plain(number / scale)} {unit}"
    return f"{scientific(number)} s"


def size_in_bytes(value: object) -> str:
    """`1.23 GiB`, `45.1 MiB`, `12 B`."""
    number = as_float(value)
    if _special(number) is not None:
        return str(_special(number))
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(number) >= 1024**power:
            return f"{plain(number / 1024**power)} {unit}"
    return f"{number:.0f} B"


def geometric_mean(values: Iterable[object]) -> float:
    """Geometric mean of the present values; infinite if one is, else zero if one is, NaN if there is none."""
    present = [number for number in map(as_float, values) if not math.isnan(number)]
    if not present:
        return math.nan
    if any(math.isinf(number) for number in present):
        return math.inf
    if any(number <= 0 for number in present):
        return 0.0
    return math.exp(math.fsum(map(math.log, present)) / len(present))


def count(number: int, singular: str, plural: str | None = None) -> str:
    """`1 case`, `1,234 cases`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
