"""What is wrong with a variant, where, and why: a few plain sentences, the cause only where it is proven.

In: the verdicts, the results, the traced steps and the hypotheses of a run. Out: a `Diagnosis` for every variant as
configured. What comes first leads: the simplest inputs, out and lse before gradients.
"""

from dataclasses import dataclass

import pandas as pd

from accuracy.core.probes import PROBES
from accuracy.results.hypothesis import FOLLOWS
from accuracy.results.table import ALL_TENSORS
from accuracy.verdict import inside
from accuracy.verdict.growth import growth_line
from accuracy.verdict.label import (
    BIASED,
    BUGS,
    EXCESS_ROUNDING,
    INVALID,
    LABELS,
    LOGIC,
    MEANING,
    MISSING_RANKS,
    NONDETERMINISTIC,
    NOT_MEASURED,
    ONE_RANK,
    PRECISION_FLOOR,
    ROUNDING,
    is_bug,
)
from accuracy.verdict.name import names_of, with_names
from accuracy.verdict.pattern import FORWARD, Pattern, pattern_of
from accuracy.verdict.proof import Cause, causes, followers
from accuracy.verdict.rows import in_blocks
from accuracy.verdict.rule.excess import INDEPENDENT
from accuracy.verdict.rule.nondeterministic import change
from accuracy.verdict.settled import with_proofs
from accuracy.verdict.traced import traced
from accuracy.verdict.untried import failures, missing_sizes, not_on, on_one_rank_only, raised, silent, untried
from accuracy.verdict.within import within

FIRST_WORDS = "One rank only"
"""Of what is said where a function of several ranks could be measured on one alone."""
PLURAL = {
    "is": "are", "comes": "come", "gives": "give", "stops": "stop", "rounds": "round", "differs": "differ",
}  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """label: the gravest of the variant; sentence: in plain words; evidence: further lines; pattern: the marks."""

    variant: str
    label: str
    sentence: str
    evidence: tuple[str, ...]
    pattern: Pattern

    @property
    def line(self) -> str:
        """The sentence where several variants are told of: it begins with the variant's name."""
        return self.sentence if self.sentence.startswith(f"{self.variant} ") else f"{self.variant}: {self.sentence}"

    @property
    def is_bug(self) -> bool:
        """Whether the variant is wrong, not merely rounding."""
        return is_bug(self.label, self.pattern.numbers)


def diagnoses(
    verdicts: pd.DataFrame, results: pd.DataFrame, steps: pd.DataFrame, hypotheses: pd.DataFrame
) -> list[Diagnosis]:
    """Gravest first."""
    names, found = names_of(results), []
    mine = dict(iter(in_blocks(with_names(results, names)).groupby("named", sort=False)))
    for name, judged in in_blocks(with_names(verdicts, names)).groupby("named", sort=False):
        cases = mine[name]["case_id"].unique()
        of_mine = (rows[rows["case_id"].isin(cases)] for rows in (steps, hypotheses))
        found.append(_diagnose(str(name), judged, mine[name], *of_mine))
    return sorted(found, key=lambda each: LABELS.index(each.label))


def sentences(found: list[Diagnosis]) -> list[str]:
    """One of each variant, which names it where several are told of."""
    return [each.line if len(found) > 1 else each.sentence for each in found]


def _diagnose(
    name: str, verdicts: pd.DataFrame, results: pd.DataFrame, steps: pd.DataFrame, hypotheses: pd.DataFrame
) -> Diagnosis:
    """Of one variant, under its name."""
    known = causes(hypotheses, results)
    verdicts = with_proofs(verdicts, known)
    pattern = pattern_of(verdicts, results)
    label = _gravest(pattern, verdicts)
    if label == NOT_MEASURED:
        return Diagnosis(name, label, f"{name} was not measured: {pattern.sentence}.", (), pattern)
    evidence = [f"{_names(pattern)}: {pattern.sentence}."] if label != ROUNDING else []
    more = (*_proofs(known), *traced(steps), _ratios(pattern), growth_line(pattern.growth), _unjudged(results))
    more = (*silent(verdicts), *raised(results), *more)
    evidence += [line for line in more if line]
    sentence = f"{_sentence(name, pattern, verdicts, results, known)} {untried(results)}".strip()
    if label == ROUNDING and (missing := missing_sizes(results)):
        if on_one_rank_only(results):
            label, sentence = ONE_RANK, f"{FIRST_WORDS}: {sentence} world_size=1 says that one rank is meant."
        else:
            label, sentence = MISSING_RANKS, f"{not_on(missing)}: {sentence}"
        evidence.append(f"Not measured on several ranks: {next(iter(missing.values()))}.")
    return Diagnosis(name, label, sentence, tuple(evidence), pattern)


def _gravest(pattern: Pattern, verdicts: pd.DataFrame) -> str:
    """What leads, but a bug where there is one behind what does not repeat."""
    bugs = [label for label in BUGS if (verdicts["label"] == label).any()]
    return bugs[0] if bugs and pattern.label == NONDETERMINISTIC else pattern.label


def leading(pattern: Pattern) -> tuple[str, ...]:
    """The tensors that the story begins with: out and lse where they are wrong, else the gradients."""
    forward = tuple(name for name in pattern.tensors if name in FORWARD)
    return forward or tuple(name for name in pattern.tensors if name != "delta") or pattern.tensors


def _sentence(
    name: str, pattern: Pattern, verdicts: pd.DataFrame, results: pd.DataFrame, known: dict[str, Cause]
) -> str:
    if pattern.label == ROUNDING:
        return _healthy(name, pattern, verdicts, results) + failures(results)
    if "returned" in pattern.numbers:
        return f"{name} is not judged in {_and(pattern.dtypes)}: {pattern.numbers['returned']}."
    if "wrote" in pattern.numbers:
        return f"{name} {pattern.numbers['wrote']} in {_and(pattern.dtypes)}; a case in which it does is not judged."
    lead = leading(pattern)
    if pattern.label == NONDETERMINISTIC:
        return _restless(pattern, lead, verdicts.loc[verdicts["label"].isin(BUGS), "tensor"])
    verb = _meaning_of(pattern)
    if len(lead) > 1:
        first, rest = verb.split(" ", 1)
        verb = f"{PLURAL[first]} {rest}"
    if pattern.label == LOGIC and pattern.sound_dtypes:
        verb = verb.replace("at any precision", f"in {_and(pattern.dtypes)} and right in {_and(pattern.sound_dtypes)}")
    elif pattern.label == LOGIC and pattern.only_dtypes:
        all_of = f"the only dtype{'s' if len(pattern.only_dtypes) > 1 else ''} measured"
        same = {*pattern.only_dtypes} == {*pattern.dtypes}
        only = f"in {_and(pattern.dtypes)}, {all_of if same else f'measured in {_and(pattern.only_dtypes)} only'}"
        verb = verb.replace("at any precision", only)
    proven = any(known[name].proven for name in lead if name in known)
    marks = (pattern.shape, _inputs(pattern), _ranks(pattern), pattern.sizes, "" if proven else _trend(pattern))
    where = [part for part in marks if part]
    text = ", ".join([f"{_and(lead)} {verb}", *where])
    return f"{text}{_cause(pattern, lead, known)}{_consequences(pattern, lead, known)}"


def _restless(pattern: Pattern, lead: tuple[str, ...], wrong: "pd.Series[str]") -> str:
    """What differs between runs, by how much, and so why; one hit tells nothing of dtypes, ranks and inputs."""
    said = f"{_and(lead)} {'differ' if len(lead) > 1 else 'differs'} from run to run{change(pattern.numbers)}"
    others = {*wrong} - {*pattern.tensors}
    for names, one, more in (({*pattern.tensors}, "differs", "differ"), (others, "is wrong", "are wrong")):
        rest = [name for name in ALL_TENSORS if name in names and name not in (*lead, "delta")]
        said += f"; {_and(rest)} {more if len(rest) > 1 else one} too" if rest else ""
    return f"{said}."


def _cause(pattern: Pattern, lead: tuple[str, ...], known: dict[str, Cause]) -> str:
    """What was proven of the leading tensors, each cause once."""
    if pattern.label not in (LOGIC, PRECISION_FLOOR, EXCESS_ROUNDING, BIASED):
        return "."
    proven = [known[name] for name in lead if name in known and known[name].proven]
    if not proven:
        return _unproven(pattern, lead, [known[name] for name in lead if name in known])
    said: list[str] = []
    left = list(proven)
    while left:
        first, alike = left[0], [each.tensor for each in left[1:] if set(each.names) & set(left[0].names)]
        left = [each for each in left[1:] if each.tensor not in alike]
        said.append(first.text + (f" ({_and(alike)} alike)" if alike and lead[0] not in FORWARD else ""))
    unproven = [name for name in lead if name not in {each.tensor for each in proven}]
    rest = f"; of {_and(unproven)} no cause was proven" if unproven else ""
    return f": {'; '.join(said)}{rest}."


def _unproven(pattern: Pattern, lead: tuple[str, ...], tried: list[Cause]) -> str:
    """How near the nearest hypothesis was, and the factor, if there is one."""
    gain = pattern.gains.get(lead[0])
    is_factor = "" if gain is None else f"; {lead[0]} is about {1 + gain:.7g} times the reference"
    if not tried:
        return f"; no cause was tried{is_factor}."
    near = min(tried, key=lambda each: each.leaves)
    return (
        f"; no cause was proven: of {near.tried} hypotheses on {near.tensor} the nearest leaves"
        f" {near.leaves:.2g} times the expected rounding{is_factor}."
    )


def _consequences(pattern: Pattern, lead: tuple[str, ...], known: dict[str, Cause]) -> str:
    """The other tensors that are wrong: made of the leading ones, or wrong too."""
    others = [name for name in (*pattern.tensors, *pattern.others) if name not in lead and name != "delta"]
    following = followers([known[name] for name in lead if name in known], [known[x] for x in others if x in known])
    rest = [name for name in others if name not in following]
    own = [name for name in rest if name in known and known[name].proven]
    said = []
    if following:
        said.append(f"{_and(following)} {'follow' if len(following) > 1 else 'follows'} from that")
    coarse = [name for name in rest if pattern.label == PRECISION_FLOOR and name in pattern.tensors]
    for names, word in ((coarse, "coarse"), ([name for name in rest if name not in coarse], "wrong")):
        said += [f"{_and(names)} {'are' if len(names) > 1 else 'is'} {word} too"] if names else []
    if own:
        said.append(known[own[0]].text)
    if pattern.coarser:
        stop = "stop" if len(pattern.coarser) > 1 else "stops"
        why = [known[name] for name in pattern.coarser if name in known]
        casts = [each.text for each in why if each.proven and each.is_cast]
        made_by = f" ({'; '.join(dict.fromkeys(casts))})" if casts else ""
        said.append(f"{_and(pattern.coarser)} {stop} getting better at a coarser dtype{made_by}")
    return f" {'; '.join(said)}." if said else ""


def _proofs(known: dict[str, Cause]) -> list[str]:
    """How each proven cause was proven."""
    return [
        f"{each.tensor} ({each.dtype}, {each.world_size} rank{'s' if each.world_size > 1 else ''}) is what this cause"
        f" makes of the reference, to {each.leaves:.2g} times the expected rounding: {each.clauses[0]}. The next of"
        f" {each.tried} hypotheses leaves {each.rival:.2g} times."
        for each in known.values()
        if each.proven and each.names[0] != FOLLOWS and each.rival < float("inf")
    ]


def _meaning_of(pattern: Pattern) -> str:
    """The label in words; of `invalid`, what of it; of `precision_floor`, which."""
    if pattern.label == PRECISION_FLOOR and pattern.floors:
        each = [f"{floor} in {_and(dtypes)}" for floor, dtypes in pattern.floors.items()]
        return f"is only as good as {_and(each)}"
    if pattern.label != INVALID:
        return MEANING[pattern.label]
    if "poisoned" in pattern.numbers:
        return "comes from unwritten memory"
    if "unwaited" in pattern.numbers:
        return "comes from a receive buffer that is read before its transfer has been waited for: a race"
    return "is not finite" if "nonfinite" in pattern.numbers else MEANING[INVALID]


def _healthy(name: str, pattern: Pattern, verdicts: pd.DataFrame, results: pd.DataFrame) -> str:
    sizes = sorted(map(int, verdicts.loc[verdicts["label"] != NOT_MEASURED, "world_size"].unique()))
    ranks = f"at {_and([str(size) for size in sizes])} rank{'s' if sizes != [1] else ''}"
    coarse = inside.is_float32(verdicts)
    far = within(results, [dtype for dtype in pattern.dtypes if not coarse or dtype != inside.FINEST], ranks)
    said = f"{name} {inside.sentence(verdicts) or 'merely rounds'}"
    return f"{said}: every tensor but lse is within {far}." if far else f"{said}."


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
    if wrong == (pattern.size - 1,):
        return f"on the last rank of {pattern.size}"
    if wrong == tuple(range(wrong[0], pattern.size)):
        return f"from rank {wrong[0]} on"
    if len(wrong) > 1 and wrong == tuple(range(wrong[-1] + 1)):
        return f"up to rank {wrong[-1]}"
    return f"on rank{'s' if len(wrong) > 1 else ''} {_and([str(rank) for rank in wrong])} of {pattern.size}"


def _trend(pattern: Pattern) -> str:
    trend = pattern.trend.get(pattern.tensors[0], "")
    if trend == "rising" and pattern.ranks_wrong[pattern.tensors[0]][0] > 0:
        return "growing with the number of ring steps"
    return {"rising": "growing from rank to rank", "falling": "falling from rank to rank"}.get(trend, "")


def _ratios(pattern: Pattern) -> str:
    ratios = [pattern.ratios.get(name) for name in ("dq", "dk", "dv")]
    if pattern.label == ROUNDING or any(value is None or not 0 < value < float("inf") for value in ratios):
        return ""
    least = min(value for value in ratios if value)
    return "Errors dq : dk : dv are as " + " : ".join(f"{value / least:.2g}" for value in ratios if value) + "."


def _unjudged(results: pd.DataFrame) -> str:
    """The inputs that rule 5 cannot judge, because no condition number tells how far partials cancel."""
    several = (results["world_size"] > 1) & results["error_rel"].notna()
    unknown = results[several & ~results["inputs"].isin(list(PROBES))]
    if "condition_sum" in unknown:
        unknown = unknown[unknown["condition_sum"].isna()]
    names = sorted(set(unknown["inputs"]) - {INDEPENDENT})
    return f"Not judged for excess rounding on {_and(names)}: that needs conditions=true." if names else ""


def _and(words: tuple[str, ...] | list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
