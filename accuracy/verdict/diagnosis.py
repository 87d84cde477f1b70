"""One plain sentence on a variant: what is wrong, where, how it grows, and what that looks like.

In: the verdicts, the results and the traced steps of a run. Out: a `Diagnosis` for every variant as configured.
"""

from dataclasses import dataclass

import pandas as pd

from accuracy.core import fields
from accuracy.core.probes import PROBES
from accuracy.verdict.growth import Growth
from accuracy.verdict.label import INVALID, LABELS, LOGIC, MEANING, NOT_MEASURED, PRECISION_FLOOR, ROUNDING
from accuracy.verdict.pattern import Pattern, pattern_of
from accuracy.verdict.rule.excess import INDEPENDENT
from accuracy.verdict.signature import signature_of

PLURAL = {
    "is": "are", "comes": "come", "gives": "give", "stops": "stop", "rounds": "round", "differs": "differ",
}  # fmt: skip
VARIANT = fields.names(fields.VARIANT, fields.PRECISION)


@dataclass(frozen=True)
class Diagnosis:
    """label: the gravest of the variant; sentence: in plain words; evidence: further lines; pattern: the marks."""

    variant: str
    label: str
    sentence: str
    evidence: tuple[str, ...]
    pattern: Pattern


def diagnoses(verdicts: pd.DataFrame, results: pd.DataFrame, steps: pd.DataFrame) -> list[Diagnosis]:
    """Gravest first."""
    found = []
    for key, judged in verdicts.groupby(list(VARIANT), sort=False):
        mine = results
        for name, value in zip(VARIANT, key, strict=True):
            mine = mine[mine[name] == value]
        found.append(diagnose(judged, mine, steps[steps["case_id"].isin(mine["case_id"])]))
    return sorted(found, key=lambda each: LABELS.index(each.label))


def diagnose(verdicts: pd.DataFrame, results: pd.DataFrame, steps: pd.DataFrame) -> Diagnosis:
    """Of one variant."""
    pattern = pattern_of(verdicts, results)
    if pattern.label == NOT_MEASURED:
        return Diagnosis(
            pattern.variant, NOT_MEASURED, f"{pattern.variant} was not measured: {pattern.sentence}.", (), pattern
        )
    evidence = [f"{_names(pattern)}: {pattern.sentence}."] if pattern.label != ROUNDING else []
    more = (_first_step(steps), _ratios(pattern), _growth_line(pattern), _unjudged(results))
    evidence += [line for line in more if line]
    return Diagnosis(pattern.variant, pattern.label, _sentence(pattern, verdicts), tuple(evidence), pattern)


def _sentence(pattern: Pattern, verdicts: pd.DataFrame) -> str:
    if pattern.label == ROUNDING:
        return _healthy(pattern, verdicts)
    known = signature_of(pattern)
    verb = _meaning_of(pattern)
    if len(pattern.tensors) > 1:
        first, rest = verb.split(" ", 1)
        verb = f"{PLURAL[first]} {rest}"
    if pattern.label == LOGIC and pattern.sound_dtypes:
        verb = verb.replace("at any precision", f"in {_and(pattern.dtypes)} and right in {_and(pattern.sound_dtypes)}")
    where = [part for part in (_inputs(pattern), _ranks(pattern), _sizes(pattern), _trend(pattern)) if part]
    text = ", ".join([f"{_names(pattern)} {verb}", *where])
    return f"{text}: looks like {known.cause}." if known else f"{text}; this matches no known fault."


def _meaning_of(pattern: Pattern) -> str:
    """The label in words; of `invalid`, what of it; of `precision_floor`, which."""
    if pattern.label == PRECISION_FLOOR and pattern.floors:
        each = [f"{floor} in {_and(dtypes)}" for floor, dtypes in pattern.floors.items()]
        return f"is only as good as {_and(each)}"
    if pattern.label != INVALID:
        return MEANING[pattern.label]
    if "poisoned" in pattern.numbers:
        return "comes from unwritten memory"
    return "is not finite" if "nonfinite" in pattern.numbers else MEANING[INVALID]


def _healthy(pattern: Pattern, verdicts: pd.DataFrame) -> str:
    judged = verdicts[(verdicts["label"] == ROUNDING) & (verdicts["tensor"] != "lse")]
    sizes = sorted(map(int, judged["world_size"].unique()))
    short = judged[judged["dtype"].isin(["bfloat16", "float16"])]
    most = (short if len(short) else judged)["x_single_device"].max()
    ranks = f"at {_and([str(size) for size in sizes])} rank{'s' if sizes != [1] else ''}"
    return (
        f"{pattern.variant} merely rounds: every tensor is within {most:.2f} times the single-device kernel's error"
        f" {ranks} in {_and(pattern.dtypes)}."
    )


def _names(pattern: Pattern) -> str:
    return _and(pattern.tensors)


def _inputs(pattern: Pattern) -> str:
    special = [name for name in pattern.inputs if name != "gaussian"]
    return f"on {_and(special)} inputs only" if special and "gaussian" not in pattern.inputs else ""


def _ranks(pattern: Pattern) -> str:
    """Which ranks of the largest world; nothing where all are wrong, or none is by itself."""
    wrong = pattern.ranks_wrong.get(pattern.tensors[0], ())
    if pattern.size < 2 or not wrong or len(wrong) == pattern.size:
        return ""
    if wrong == tuple(range(wrong[0], pattern.size)):
        return f"from rank {wrong[0]} on"
    if len(wrong) > 1 and wrong == tuple(range(wrong[-1] + 1)):
        return f"up to rank {wrong[-1]}"
    return f"on rank{'s' if len(wrong) > 1 else ''} {_and([str(rank) for rank in wrong])} of {pattern.size}"


def _sizes(pattern: Pattern) -> str:
    return f"with {pattern.world_sizes[0]} ranks or more, not with one" if pattern.sound_at_one else ""


def _trend(pattern: Pattern) -> str:
    trend = pattern.trend.get(pattern.tensors[0], "")
    if trend == "rising" and pattern.ranks_wrong[pattern.tensors[0]][0] > 0:
        return "growing with the number of ring steps"
    return {"rising": "growing from rank to rank", "falling": "falling from rank to rank"}.get(trend, "")


def _first_step(steps: pd.DataFrame) -> str:
    """The first traced step that leaves the rounding band."""
    if steps.empty:
        return ""
    off = steps[~(steps["error_rel"] <= steps["band"]) | (steps["nonfinite"] > 0)]
    if off.empty:
        return "Traced step by step, no partial and no running state leaves the rounding band."
    order = off.assign(_way=off["way"] != "forward", _state=off["state"] != "partial")
    first = order.sort_values(["_way", "step", "rank", "_state"], kind="stable").iloc[0]
    rank = f"rank {first['rank']}"
    if 0 <= first["source"] != first["rank"]:
        rank += f" with the keys of rank {first['source']}"
    place = f"queries {first['query_begin']} to {first['query_last']}, keys {first['key_begin']} to {first['key_last']}"
    state = "what the kernel gives" if first["state"] == "partial" else "what has been joined so far"
    return (
        f"The first step that leaves the rounding band: {first['way']} of {rank}, block {first['step']} "
        f"({place}): {state} of {first['tensor']} is off by {first['error_rel']:.2g}."
    )


def _ratios(pattern: Pattern) -> str:
    ratios = [pattern.ratios.get(name) for name in ("dq", "dk", "dv")]
    if pattern.label == ROUNDING or any(value is None or not 0 < value < float("inf") for value in ratios):
        return ""
    least = min(value for value in ratios if value)
    return "Errors dq : dk : dv are as " + " : ".join(f"{value / least:.2g}" for value in ratios if value) + "."


def _growth_line(pattern: Pattern) -> str:
    """The exponent of every tensor over the world size, and what it means."""
    if not pattern.growth:
        return ""
    each = ", ".join(f"{name} {growth.text} ({_meaning(growth)})" for name, growth in pattern.growth.items())
    return f"Growth over the world size: {each}."


def _unjudged(results: pd.DataFrame) -> str:
    """The inputs that rule 5 cannot judge, because no condition number tells how far partials cancel."""
    unknown = results[
        (results["world_size"] > 1) & results["error_rel"].notna() & ~results["inputs"].isin(list(PROBES))
    ]
    if "condition_sum" in unknown:
        unknown = unknown[unknown["condition_sum"].isna()]
    names = sorted(set(unknown["inputs"]) - {INDEPENDENT})
    return f"Not judged for excess rounding on {_and(names)}: that needs conditions=true." if names else ""


def _meaning(growth: Growth) -> str:
    return {
        "flat": "flat: nothing adds up",
        "random walk": "like the square root: independent roundings add up",
        "bias": "linear or faster: every step adds the same",
    }.get(growth.word, growth.word)


def _and(words: tuple[str, ...] | list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
