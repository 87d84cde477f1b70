"""The template of every sentence about a verdict: of one finding, of a variant's diagnosis, of the evidence.

In: findings and `accuracy.verdict.facts`. Out: text. Rules hold labels and numbers; the command line, the API, the
gate and reports print these sentences, and `accuracy.verdict.headline` makes a report's first screen of them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from accuracy.core.dtype import PROBES
from accuracy.core.number import count, listed, on_ranks, plain, those
from accuracy.results.table import FOLLOWS, SCALED
from accuracy.verdict import label, traced
from accuracy.verdict.inside import FORMAT, LSE, SCORES, WEIGHTS
from accuracy.verdict.label import Numbers

if TYPE_CHECKING:
    from accuracy.verdict.facts import Facts

ONE_RANK_ONLY = "One rank only"
_DIFFER = "{repeats_differ:.0f} values differ between runs ({in_dtype})"
_SIZE = ", by at most {repeats_size:.2g} of the tensor's size: "
CHANGES = {
    "differs": "",
    "other_order": f"{_SIZE}sums were added in another order",
    "race": f"{_SIZE}there is a race, or a run read what an earlier one left, other data, or other"
    " random numbers, as dropout does",
}
TIED = ", but for a bias on tied inputs, where equal values round alike in 16 bits (weights, or heads' dk and dv)"
KEPT_SUM = "; the sum over keys is kept in 16 bits, whose error grows with the length: that of out is {}"
LONG_SUM = "; the error of {} is that of a long sum which is kept in 16 bits: {}"
GROWS = "; the error of {} grows with the length, as that of sums which are kept in 16 bits does: {}"
WINDOWS = {"behind": "on either side of a query's own", "keys": "that a query sees, its own among them"}
_RUNS = ", in {runs:.0f} runs, on ranks {ranks}"
FINDINGS = {  # by the kind of a finding, with its numbers, its tensor and its dtype
    **{kind: f"{_DIFFER}{_RUNS if change else ''}{change}" for kind, change in CHANGES.items()},
    "wrote": "{reason}",
    "returned": "{reason}",
    "unwaited": "{unwaited:.0f} values are no longer finite when receive buffers are filled with NaN until their"
    " transfer has been waited for: a race",
    "nonfinite": "{nonfinite:.0f} values are not finite (inputs {inputs}, seed {seed:.0f})",
    "poisoned": "{poisoned:.0f} values are no longer finite when unwritten memory and memory beside inputs have NaN",
    "future": "{future_differs:.0f} values of earlier rows change with later tokens",
    "one_gradient": "{tensor} should be 0 with V = dout = 1 and is {probe:.2g}",
    "one_value": "out should be 1 with V = 1 and is off by {probe:.2g} of it",
    "zero_query": "out should be the mean of the values with Q = 0 and is off by {probe:.2g} of it",
    "index_value": "out should be the mean of the visible positions' codes with Q = 0 and is off by {probe:.2g} of it",
    "keys": "with Q = 0 lse counts keys: token {token:.0f} sees {keys_seen} and counts {keys_counted:.4g}",
    "factor": "{factor:.7g} times the reference, standard error {gain_se:.1g} ({inputs} inputs)",
    "biased": "{side} in every seed, by {bias_share:.2g} of the error ({inputs} inputs, t = {bias_t:.3g})",
    "floor": "only as good as {floor} in {dtype}: {mark}",
    "large": "the relative error is {error_rel:.2g} in {dtype} ({inputs} inputs)",
    "large_in_few": "the relative error is {error_rel:.2g} in {dtype} ({inputs} inputs), in {struck:.2g} of elements",
    "also_finer": "the relative error is {error_rel:.2g} and still {finer:.2g} in {finer_dtype} ({inputs} inputs)",
    "beyond": "values farther from the reference than any rounding in {dtype} carries: {beyond:.0f} ({inputs} inputs)",
    SCORES: "is as exact as scores in {floor} allow, which is permitted",
    "sums_cut": "is {gain:+.2g} of itself off: sums in {floor} are cut off, as tensor cores do, which is permitted",
    "float32_lse": "is stored in float32, as it may be",
    "float32_inside": "computes in float32 inside: at float64 its tensors are float32-accurate ({off:.2g})",
    "coherent": "{x_single_device:.3g} times single device's error: more than {roundings:.0f} roundings can add up to",
    "excess": "{x_single_device:.3g} times single device's error over {seeds:.0f} seeds; explained: {limit:.3g}",
    "element": "the largest error is {x_single_device_max:.3g} times single device's (allowed: {allowed:g})",
    "rank": "{x_single_device_rank:.3g} times single device's error on rank {rank:.0f} (allowed there: {allowed:.3g})",
    "kept_sum": "{x_single_device:.3g} times single device's error, as a long sum in 16 bits has, which is permitted",
    label.ROUNDING: "{x_single_device:.3g} times single device's error",
    label.NOT_MEASURED: "{reason}",
}
VERBS = {  # what the tensors of a label do, or of a kind of finding
    "poisoned": "comes from unwritten memory",
    "unwaited": "comes from a receive buffer that is read before its transfer has been waited for: a race",
    "nonfinite": "is not finite {scope}",
    label.INVALID: "gives values that are not finite, of a wrong shape or dtype, or from unwritten memory",
    label.LOGIC: "is wrong {scope}",
    label.PRECISION_FLOOR: "is only as good as {floors}",
    label.BIASED: "is biased to one side {scope}",
    label.EXCESS_ROUNDING: "rounds more than the schedule explains",
    label.NONDETERMINISTIC: "differs from run to run",
}
GROWTHS = {
    "flat": "flat: nothing adds up",
    "random walk": "like the square root: independent roundings add up",
    "bias": "linear or faster",
}


def finding(kind: str, numbers: Numbers, tensor: str = "", dtype: str = "") -> str:
    """The evidence of one verdict."""
    return FINDINGS[kind].format(**{"tensor": tensor, "dtype": dtype, **numbers})


def _do(names: Sequence[str], phrase: str) -> str:
    """Tensors and what they do: the phrase's verb is in the singular."""
    verb, rest = phrase.split(" ", 1)
    return f"{listed(names)} {verb if len(names) == 1 else 'are' if verb == 'is' else verb.removesuffix('s')} {rest}"


def _each_do(phrases: Mapping[str, Sequence[str]]) -> Iterator[str]:
    return (_do(names, phrase) for phrase, names in phrases.items() if names)


def diagnosis(facts: "Facts") -> str:
    """What is wrong, where, under which condition, and why; or how far a healthy variant is from the reference."""
    numbers, name, dtypes = facts.numbers, facts.variant, listed(facts.dtypes or [""])
    if facts.leads == label.NOT_MEASURED:
        each = [f"{reason} in {listed(names)}" for reason, names in facts.unmeasured.items()]
        return f"{name} was not measured: {'; '.join(each) if len(each) > 1 else finding(facts.finding, numbers)}."
    if facts.leads == label.ROUNDING:
        if facts.label == label.ONE_RANK:
            return f"{ONE_RANK_ONLY}: {_healthy(facts)} Set world_size=1 if one rank is meant."
        if facts.label == label.HARDLY_CHECKED:
            return f"Hardly checked, {facts.cases - facts.failed} of {facts.cases} cases: {_healthy(facts)}"
        return f"{not_on(facts.missing_sizes)}: {_healthy(facts)}" if facts.missing_sizes else _healthy(facts)
    if "returned" in numbers:
        return f"{name} is not judged in {dtypes}: {numbers['returned']}."
    if "wrote" in numbers:
        return f"{name} {numbers['wrote']} in {dtypes}; a case in which it does is not judged."
    if facts.leads == label.NONDETERMINISTIC:
        text = what(facts) + CHANGES[facts.finding].format(**numbers)
        same = [x for x in facts.consequences if x in facts.tensors]
        return "; ".join([text, *_each_do({"differs too": same, "is wrong too": facts.others})]) + "."
    also = "; ".join(_consequences(facts))
    more = "".join(f" {each}." for each in (also, *_otherwise(facts)) if each)
    return f"{', '.join([what(facts), *where(facts)])}{why(facts)}.{more}"


def not_on(sizes: Iterable[int]) -> str:
    """The first words on a variant that has no number at these numbers of ranks."""
    return f"Not on {listed(sizes)} ranks"


def not_tried(facts: "Facts") -> str:
    """What no measured case has; a verdict holds for what was measured."""
    return f"Not tried: {', '.join(facts.not_tried)}." if facts.not_tried else ""


def what(facts: "Facts", verbs: Mapping[str, str] = VERBS) -> str:
    """Which tensors do what: the first clause of a diagnosis."""
    scope, dtypes = "at any precision", listed(facts.dtypes)
    if facts.sound_dtypes:
        scope = f"in {dtypes} and right in {listed(facts.sound_dtypes)}"
    elif facts.only_dtypes or facts.hidden_dtypes:
        alone = f", the only dtype{'s' * (len(facts.dtypes) > 1)} measured"
        scope = f"in {dtypes}" + alone * (facts.dtypes == facts.run_dtypes)
    notes = [f"{name} is right in {listed(names)}" for name, names in facts.right_alone.items()]
    notes += [f"in {listed(facts.hidden_dtypes)} rounding could hide it"] if facts.hidden_dtypes else []
    scope += f" ({'; '.join(notes)})" if notes else ""
    floors = [f"{floor} in {listed(names)}" for floor, names in facts.floors.items()]
    kind = next((x for x in ("poisoned", "unwaited", "nonfinite") if x in facts.numbers), label.INVALID)
    verb, formats = verbs[kind if facts.leads == label.INVALID else facts.leads], listed(facts.floors or ["16 bits"])
    return _do(facts.lead, verb.format(scope=scope, floors=listed(floors or ["a coarser dtype"]), formats=formats))


def where(facts: "Facts") -> Iterator[str]:
    """With which problems, inputs and sizes, on which ranks, and how the error goes from rank to rank."""
    groups = f"only with {' and '.join(map(' or '.join, facts.settings))}" if facts.settings else ""
    some = f"in {facts.wrong_problems} of {facts.problems} problems, as with {' and '.join(facts.example)}"
    kinds = () if "gaussian" in facts.inputs else facts.inputs
    apart = ", not on gaussian ones" if {*kinds} <= {*PROBES} else " only"
    special = f"on {listed(kinds)} inputs{apart}" if kinds else ""
    if conditions := [x for x in (groups or some * bool(facts.problems), special) if x]:
        yield ", ".join(conditions) + (f" (run in {facts.run_in})" if facts.run_in else "")
    yield from [f"not with {' or '.join(facts.settings_right)}"] if facts.settings_right else []
    yield from [those("rank", facts.ranks, facts.size)] if 0 < len(facts.ranks) < facts.size else []
    if facts.sizes_right:
        first, right = min(facts.sizes_wrong), listed(facts.sizes_right)
        more = f"{first} ranks or more" if max(facts.sizes_right) < first else f"{listed(facts.sizes_wrong)} ranks"
        yield f"with {more} (right with {right})"
    if facts.trend and not facts.proven:
        hops = facts.trend == "growing" and facts.ranks[0] > 0
        yield f"{facts.trend} {'with the number of ring steps' if hops else 'from rank to rank'}"


def why(facts: "Facts") -> str:
    """What was proven of the leading tensors, each cause once; else how near the nearest hypothesis was."""
    if facts.leads == label.INVALID:
        return ""
    lead, proven = facts.lead, facts.proven
    tried = [facts.causes[x] for x in lead if x in facts.causes]
    if not proven:
        factor = "" if facts.gain is None else f"; {lead[0]} is about {_factor(facts.gain)} times the reference"
        if not tried:
            return f"; no cause was tried{factor}"
        near = min(tried, key=lambda each: each.leaves)
        nearest = f"of {near.tried} hypotheses on {near.tensor} the nearest leaves {near.leaves:.2g}"
        return f"; no cause was proven: {nearest} times the expected rounding{factor}"
    parts: list[str] = []
    said = f" {on_ranks(facts.ranks)}" if len(facts.ranks) < facts.size else ""  # by `where`
    unproven = [x for x in lead if x not in {each.tensor for each in proven}]
    while proven:
        first, *others = proven
        proven = [each for each in others if not {*each.names} & {*first.names} or each.differs_from(first)]
        alike = [each.tensor for each in others if each not in proven]
        parts.append(
            first.text.removesuffix(said)
            + (f" ({listed(alike)} alike)" if alike and lead[0] not in ("out", "lse") else "")
        )
    return f": {'; '.join(parts)}" + (f"; of {listed(unproven)} no cause was proven" if unproven else "")


def _consequences(facts: "Facts") -> Iterator[str]:
    """What the other wrong tensors do, and the first one's own cause where one is proven."""
    rest = [x for x in facts.consequences if x not in facts.following]
    coarse = [x for x in rest if facts.leads == label.PRECISION_FLOOR and x in facts.tensors]
    wrong = [x for x in rest if x not in coarse]
    proven = {name: each for name, each in facts.causes.items() if each.proven}
    casts = "; ".join(dict.fromkeys(proven[x].text for x in facts.coarser if x in proven and proven[x].is_cast))
    as_far = "is as far off as a coarser dtype's rounding"
    stops = f"stops getting better at a coarser dtype ({casts})" if casts else as_far
    verbs = {"follows from that": facts.following, "is coarse too": coarse, "is wrong too": wrong, stops: facts.coarser}
    yield from _each_do(verbs)
    yield from [proven[x].text for x in rest if x in proven][:1]


def _factor(gain: float) -> str:
    """1 + gain; `(1 + 3e-07)` where the digits of the sum would not show it."""
    return f"{1 + gain:.7g}" if abs(gain) >= 1e-5 else f"(1 {'-' if gain < 0 else '+'} {abs(gain):.2g})"


def _otherwise(facts: "Facts") -> Iterator[str]:
    """Which errors the proven causes do not make: in each dtype those of the leading tensors, else of others."""
    for dtype, off in facts.otherwise.items():
        if names := [x for x in facts.lead if x in off] or [x for x in facts.consequences if x in off]:
            sizes = listed(f"{off[name]:.2g}" for name in names)
            yield f"In {dtype} another fault makes {listed(names)} wrong, by {sizes} of itself"


def _healthy(facts: "Facts") -> str:
    text = "rounds as a function that computes in float32 inside should" if FORMAT in facts.inside else "merely rounds"
    text = f"computes {facts.arithmetic}, which is no fault, and {text}" if facts.arithmetic else text
    text += TIED if WEIGHTS in facts.inside else ""
    text += facts.kept_sum
    text += "".join({f"; {each.clauses[0]}" for each in facts.causes.values() if each.proven and SCALED in each.names})
    if facts.unsteady:
        text += f", but for {listed(facts.unsteady)}, whose sums are added in another order from call to call"
    text += "; nothing else found" if facts.inside - {LSE, SCORES} else ""
    far: list[str] = []
    for width in facts.widths:
        exact, times, most = math.isnan(width.times), plain(width.times), plain(width.most)
        number = "rounding" if exact else f"{times} times"
        if not far:
            number += "" if exact else " the single-device kernel's error"
            number += f" at {listed(facts.sizes_right)} rank{'s' * (facts.sizes_right != (1,))}"
        more = "" if exact or most == times else f" ({most} on {width.inputs} inputs)"
        far.append(f"{number} in {' and '.join(width.dtypes)}{more}")
    text += f": every tensor but lse is within {', '.join(far)}" if far else ""
    return f"{facts.variant} {text}." + f" {facts.failed} of {count(facts.cases, 'case')} failed." * bool(facts.failed)


def evidence(facts: "Facts") -> Iterator[str]:
    """The lines below a diagnosis: numbers, what was not measured, proofs, the traced steps."""
    if facts.leads == label.NOT_MEASURED:
        return
    if facts.leads != label.ROUNDING:
        yield f"{listed(facts.tensors)}: {finding(facts.finding, facts.numbers, facts.tensors[0], facts.of_dtype)}."
        yield from [f"Beside that it computes {facts.arithmetic}."] if facts.arithmetic else []
    yield from (f"Not measured on {size} ranks: {reason}." for size, reason in facts.missing_sizes.items())
    yield from (f"Not measured in {', '.join(dtypes)}: {reason}." for reason, dtypes in facts.unmeasured.items())
    yield from [f"It takes a window as the keys {WINDOWS[facts.window]}."] if facts.window in WINDOWS else []
    yield from [f"Not taken, so not asked: {'; '.join(facts.not_taken)}."] if facts.not_taken else []
    yield from [f"Not returned, so not judged: {', '.join(facts.not_returned)}."] if facts.not_returned else []
    for cases, first, reason in facts.failures:
        yield f"Not measured in {count(cases, 'case')}, the first with {first}: {reason}."
    for each in facts.causes.values():
        if each.proven and each.names[0] != FOLLOWS and math.isfinite(each.rival):
            yield (
                f"{each.tensor} ({each.dtype}, {count(each.world_size, 'rank')}) is what this cause makes of the "
                f"reference, to {each.leaves:.2g} times the expected rounding: {each.clauses[0]}. The next of "
                f"{each.tried} hypotheses leaves {each.rival:.2g} times."
            )
    yield from traced.lines(facts)
    if facts.ratios:
        yield f"Errors dq : dk : dv are as {' : '.join(f'{ratio:.2g}' for ratio in facts.ratios)}."
    if steps := facts.steps:
        yield f"Over the number of ranks: {steps}."
    elif growth := facts.certain_growth:
        grown = (f"{name} {x.text} ({GROWTHS.get(x.word, x.word)})" for name, x in growth.items())
        yield f"Growth over the world size: {', '.join(grown)}."
    if facts.unjudged:
        yield f"Not judged for excess rounding on {listed(facts.unjudged)}: that needs conditions=true."
