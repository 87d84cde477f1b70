"""The template of the lines about traced steps: the first that leaves the rounding band, and what was not counted once.

In: rows of `steps/`. Out: text, for `accuracy.verdict.words`.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from accuracy.core.number import count

if TYPE_CHECKING:
    from accuracy.verdict.facts import Facts

TRACED = {  # the `finding` of a row of `steps/`, and what it says of `count`
    "left out": "{tensor} does not hold {count} visible pair{s} of a query and a key{where}",
    "counted again": "{tensor} counts {count} pair{s} of a query and a key more than once{where}",
    "shown": "{tensor} holds {count} pair{s} that the mask hides{where}",
}
MOST_TRACED = 3


def lines(facts: "Facts") -> Iterator[str]:
    """The first step that is off, if steps were traced, and what the accounting found."""
    if step := facts.step:
        keys = f" with the keys of rank {step['source']}" if 0 <= step["source"] != step["rank"] else ""
        yield (
            f"The first step that leaves the rounding band: {step['way']} of rank {step['rank']}{keys}, block "
            f"{step['step']} ({_tokens(step)}): {step['tensor']} of the kernel is off by {step['error_rel']:.2g}."
        )
    elif step is not None:
        yield "Traced step by step, no result of a kernel call leaves the rounding band."
    if facts.account:
        first = [row for row in facts.account[:MOST_TRACED] if row["case_id"] == facts.account[0]["case_id"]]
        more = [count(left, "more finding")] if (left := len(facts.account) - len(first)) else []
        yield f"Accounting: {'; '.join([*map(_entry, first), *more])}."


def _entry(row: Mapping[Any, Any]) -> str:
    numbers = {**row, "count": int(row["count"]), "s": "" if row["count"] == 1 else "s", "where": f" ({_tokens(row)})"}
    return f"{row['way']} of rank {row['rank']}: {TRACED[row['finding']].format(**numbers)}"


def _tokens(row: Mapping[Any, Any]) -> str:
    def span(one: str, several: str) -> str:
        first, last = row[f"{one}_begin"], row[f"{one}_last"]
        return f"{one} {first}" if first == last else f"{several} {first} to {last}"

    return f"{span('query', 'queries')}, {span('key', 'keys')}"
