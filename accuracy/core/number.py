"""How is a number written in the report? Every function is total: missing, infinite and zero have a text."""

import math
import statistics
from collections.abc import Iterable
from itertools import combinations

MISSING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"


def as_float(value: object) -> float:
    """The value as a float; NaN for anything that is missing or no number."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def _special(value: float) -> str:
    if math.isnan(value):
        return MISSING
    return {0.0: "0", math.inf: "∞", -math.inf: f"{MINUS}∞"}.get(value, "")


def scientific(value: object, digits: int = 3) -> str:
    """`1.23e-4`: for errors, which span many orders of magnitude."""
    number = as_float(value)
    if special := _special(number):
        return special
    mantissa, exponent = f"{number:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def plain(value: object, digits: int = 3) -> str:
    """`1.22`, `12.2`, `0.031`: for ratios and exponents; far from one it falls back to `scientific`."""
    number = as_float(value)
    if special := _special(number):
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
        return _special(number)
    text = f"{abs(number):.2f}"
    return f"{MINUS}{text}" if number < 0 and float(text) > 0 else text


def geometric_mean(values: Iterable[object]) -> float:
    """Geometric mean of the present values; infinite if one is, else zero if one is, NaN if there is none."""
    present = [number for number in map(as_float, values) if not math.isnan(number)]
    if not present or math.inf in present:
        return math.inf if present else math.nan
    return 0.0 if min(present) <= 0 else statistics.geometric_mean(present)


def count(number: int, singular: str, plural: str | None = None) -> str:
    """`1 case`, `1,234 cases`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def listed(names: Iterable[object]) -> str:
    """`out, dq and dk`."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last


def those(noun: str, some: tuple[int, ...], every: int) -> str:
    """`on the last rank of 8`, `from rank 3 on`, `on ranks 1 to 4 of 8`: which of so many, numbered from 0."""
    first, last = some[0], some[-1]
    run = some == tuple(range(first, last + 1))
    if run and last == every - 1:
        return f"on the last {noun} of {every}" if first == last else f"from {noun} {first} on"
    which = f"{first} to {last}" if run and len(some) > 2 else listed(some)
    return f"on {noun}{'s' * (len(some) > 1)} {which} of {every}"


def on_ranks(ranks: Iterable[int]) -> str:
    """Return `on rank 5` or `on ranks 1 and 3`; nothing where there is none."""
    each = [*map(str, ranks)]
    return f"on rank{'s' * (len(each) > 1)} {' and '.join(each)}" if each else ""


def shapley(value: dict[frozenset[str], float], places: tuple[str, ...]) -> dict[str, float]:
    """Return each place's share of a value that several make together (Shapley 1953): its mean marginal fall of `value`
    over all orders in which the places are made finer."""
    count = len(places)
    shares = dict.fromkeys(places, 0.0)
    for place in places:
        others = [other for other in places if other != place]
        for size in range(count):
            weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
            for chosen in combinations(others, size):
                before = frozenset(chosen)
                shares[place] += weight * (value[before] - value[before | {place}])
    return shares
