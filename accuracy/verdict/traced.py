"""What the traced steps of a variant say: where it first leaves the rounding band, and what does not add up."""

import pandas as pd

MOST_FINDINGS = 3
FINDINGS = {  # the `finding` of a row of `steps/`, and what it says of `count`
    "missing": "{count} visible pair{s} of a query and a key in no kernel call{place}",
    "repeated": "{count} pair{s} of a query and a key in more than one kernel call{place}",
    "hidden": "{count} pair{s} that the mask hides in a kernel call{place}",
    "left out": "{tensor} does not hold {count} visible pair{s} of a query and a key{place}",
    "counted again": "{tensor} counts {count} pair{s} of a query and a key more than once{place}",
    "shown": "{tensor} holds {count} pair{s} that the mask hides{place}",
    "added again": "{tensor} gets a block that no kernel call gave, or that it had already",
    "never added": "{tensor} never gets {count} block{s} that the kernel gave{place}",
    "changed": "{count} value{s} of the returned {tensor} differ from the last running state",
    "other sum": "the returned {tensor} is not the sum of what the kernel gave for its tokens (off by {error_rel:.2g})",
}


def traced(steps: pd.DataFrame) -> list[str]:
    """Nothing where nothing was traced."""
    if steps.empty:
        return []
    found = steps["finding"].notna() if "finding" in steps else pd.Series(False, steps.index)
    measured, lines = steps[~found], _account(steps[found])
    return lines if measured.empty else [_first_step(measured), *lines]


def _first_step(steps: pd.DataFrame) -> str:
    """The first that leaves the rounding band."""
    off = steps[~(steps["error_rel"] <= steps["band"]) | (steps["nonfinite"] > 0)]
    if off.empty:
        return "Traced step by step, no partial and no running state leaves the rounding band."
    order = off.assign(_way=off["way"] != "forward", _state=off["state"] != "partial")
    first = order.sort_values(["_way", "step", "rank", "_state"], kind="stable").iloc[0]
    rank = f"rank {first['rank']}"
    if 0 <= first["source"] != first["rank"]:
        rank += f" with the keys of rank {first['source']}"
    state = "what the kernel gives" if first["state"] == "partial" else "what has been joined so far"
    return (
        f"The first step that leaves the rounding band: {first['way']} of {rank}, block {first['step']} "
        f"({_tokens(first)}): {state} of {first['tensor']} is off by {first['error_rel']:.2g}."
    )


def _account(findings: pd.DataFrame) -> list[str]:
    """The first few findings of the smallest world that has any: pairs before adds before sums, forward first."""
    if findings.empty:
        return []
    smallest = findings[findings["case_id"] == findings["case_id"].iloc[0]]
    order = smallest.assign(
        _back=smallest["way"] != "forward", _kind=smallest["finding"].map(list(FINDINGS).index)
    ).sort_values(["_back", "_kind", "rank", "step"], kind="stable")
    said = [_said(row) for _, row in order.head(MOST_FINDINGS).iterrows()]
    more = len(findings) - len(said)
    further = f"; {more} more finding{'s' if more > 1 else ''}" if more else ""
    return [f"Accounting: {'; '.join(said)}{further}."]


def _said(row: pd.Series) -> str:
    block = f", block {row['step']}" if row["step"] >= 0 else ""
    place = f" ({_tokens(row)})" if row["query_begin"] >= 0 else ""
    count = int(row["count"])
    text = FINDINGS[row["finding"]].format(
        count=count, s="s" if count != 1 else "", tensor=row["tensor"], place=place, error_rel=row["error_rel"]
    )
    return f"{row['way']} of rank {row['rank']}{block}: {text}"


def _tokens(row: pd.Series) -> str:
    return ", ".join(_range(one, many, *row[[f"{one}_begin", f"{one}_last"]]) for one, many in _TOKENS)


_TOKENS = (("query", "queries"), ("key", "keys"))


def _range(one: str, many: str, begin: int, last: int) -> str:
    return f"{one} {begin}" if begin == last else f"{many} {begin} to {last}"
