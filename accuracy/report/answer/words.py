"""What does the run say, in a sentence that a reader with two minutes takes away, and what is to be done?"""

import math
import re

import pandas as pd

from accuracy.core import fields
from accuracy.core.number import count, plain
from accuracy.report.answer.accused import Accused
from accuracy.report.means import geometric_means
from accuracy.report.section.recommendation import JUDGED
from accuracy.report.series import SINGLE_DEVICE, spoken
from accuracy.results.table import ALL_RANKS, FAILED, OK
from accuracy.verdict.diagnosis import Diagnosis
from accuracy.verdict.label import HEALTHY, INVALID, NONDETERMINISTIC, ONE_RANK, TOO_LITTLE

NEARER = 0.8  # of the accused's ratio: a variant to take instead is better by more than seeds differ
MOST_NAMES = 3
_END_OF_CLAUSE = r"[;:]|\. |\.$|, (?=from rank |up to rank |on |with |growing |falling )"


def times(value: float) -> str:
    """`3.81`, `4130`: a ratio inside a sentence, with the digits that it has in a table."""
    return plain(value) if math.isfinite(value) else "infinitely many"


def finding(found: list[Diagnosis], worst: Accused | None, cases: pd.DataFrame) -> str:
    """The headline where no published answer is held by the table."""
    if (cases["status"] != OK).all():
        return _nothing(cases)
    first = blamed(found)
    if first:
        of_kernel = f" with kernel {worst.kernel}" if worst and worst.alone and first.variant == SINGLE_DEVICE else ""
        return f"{first.variant}{of_kernel}: {_clause(first)}. {_cell(worst, first.label)}".strip()
    if worst is None:
        return "No case has a finite ratio to single device."
    few = next((each.label for each in found if each.label in TOO_LITTLE), None)
    none = {ONE_RANK: "One rank only", None: "No bug found"}.get(few, "Not measured on all ranks")
    if worst.alone:
        said = f"{none}: every kernel merely rounds{_apart(worst)}."
        return f"{said} Furthest from exact {_place(worst)}{_beyond(worst)}."
    sizes = cases.loc[cases["status"] == OK, "world_size"]
    up_to = "up to" if sizes[sizes > 1].nunique() > 1 else "at"
    whose = f"{_listed(JUDGED)} of every variant stay" if worst.beyond else "every variant stays"
    return (
        f"{none}: {up_to} {count(int(sizes.max()), 'rank')} {whose} within {times(worst.most)} times single "
        f"device's error{_apart(worst)}. Furthest {_place(worst)}{_beyond(worst)}."
    )


def blamed(found: list[Diagnosis]) -> Diagnosis | None:
    """The gravest variant, if any does more than round."""
    return next((each for each in found if each.label not in HEALTHY), None)


def _clause(first: Diagnosis) -> str:
    """The first part of the verdict's sentence: which tensors do what."""
    sentence = first.sentence.split(f", {first.pattern.shape}")[0] if first.pattern.shape else first.sentence
    return re.split(_END_OF_CLAUSE, sentence)[0]


def _cell(worst: Accused | None, label: str) -> str:
    if worst is None:
        return ""
    if label == INVALID:
        return f"Seen in {worst.tensor} in {worst.dtype} {_ranks(worst.world_size)}."
    there = f", {times(worst.there)} times on rank {worst.rank}" if worst.rank is not None else ""
    whose = "the rounding floor" if worst.alone else "single device's error"
    return f"{worst.tensor} has {times(worst.times)} times {whose} in {worst.dtype} {_ranks(worst.world_size)}{there}."


def _place(worst: Accused) -> str:
    """`in bfloat16 is dq of striped, 1.25 times at 4 ranks`: of the furthest dtype the cell that is."""
    of = worst.named if worst.alone else spoken(worst.series)
    floor = " the rounding floor" if worst.alone else f" {_ranks(worst.world_size)}"
    return f"in {worst.dtype} is {worst.tensor} of {of}, {times(worst.times)} times{floor}"


def _beyond(worst: Accused) -> str:
    """The tensors that the sentence leaves out, where they go further than it says."""
    said = []
    for each in worst.beyond:
        of = each.named if each.alone else spoken(each.series)
        where = "" if each.alone else f" {_ranks(each.world_size)}"
        said.append(f"{each.tensor} of {of} has {times(each.times)} times{where}")
    if worst.endless:
        said.append(f"single device has no error in {worst.endless[0]}, which has one")
    return f"; {'; '.join(said)}" if said else ""


def _apart(worst: Accused) -> str:
    return f" ({' and '.join(worst.apart)} apart)" if worst.apart else ""


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _ranks(size: int) -> str:
    return f"at {count(size, 'rank')}"


def _nothing(cases: pd.DataFrame) -> str:
    """Of a run without numbers: how many cases failed and were unsupported, and the most frequent reason."""
    failed = int((cases["status"] == FAILED).sum())
    cut = len(cases) - failed
    said = [f"{count(failed, 'case')} failed"] if failed else []
    said += [f"{count(cut, 'case is', 'cases are')} unsupported"] if cut else []
    reasons = (cases[cases["status"] == FAILED] if failed else cases)["reason"].dropna()
    why = f": {reasons.mode().iloc[0]}" if len(reasons) else ""
    return f"Nothing was measured. {' and '.join(said)}{why}".rstrip(".") + "."


def advice(found: list[Diagnosis], worst: Accused | None, measured: pd.DataFrame, attribution: str) -> str:
    """The line below the headline: the cause as far as it is proven, and what to do."""
    first = blamed(found)
    sound = {each.variant for each in found if each.label in HEALTHY}
    if first is None and worst is None:
        return "Cases without numbers, below, has the reasons. The same command measures what is left."
    if first is None and any(each.label in TOO_LITTLE for each in found):
        return "Measure it on more ranks, on a machine that has them, or give world_size=1 if one rank is meant."
    if first is None:
        return f"{attribution} Nothing to mend here: choose by time and memory.".strip()
    others = list(dict.fromkeys(each.variant for each in found if each.label not in HEALTHY))[1:]
    more = f" and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
    also = f"Also flagged: {', '.join(others[:MOST_NAMES])}{more}." if others else ""
    remedy = _remedy(first, worst, measured, measured[measured["named"].isin(sound)])
    return " ".join(filter(None, (_cause(first, attribution), remedy, also)))


def _cause(first: Diagnosis, attribution: str) -> str:
    proven = re.search(
        r": ([^;]*?)(?:; of [^.]* no cause was proven)?\.(?: |$)", first.sentence.split(" Not tried: ")[0]
    )
    if not re.search("no cause was (proven|tried)", first.sentence) and proven and first.label != NONDETERMINISTIC:
        return f"Cause: {proven[1]}."
    return attribution or "No cause was proven."


def _remedy(first: Diagnosis, worst: Accused | None, measured: pd.DataFrame, sound: pd.DataFrame) -> str:
    best = _alternative(worst, sound) if worst else ""
    instead = f" Take {best} instead." if best else ""
    if "returned" in first.pattern.numbers:
        return "It is judged once it returns what is expected: a wrapper of a few lines can do that."
    if first.is_bug:
        which = _chosen(first.pattern.variant, measured) + (f" kernel={worst.kernel}" if worst and worst.alone else "")
        return f"Do not use it before it is mended: accuracy experiment=diagnose {which} names the step.{instead}"
    if first.label == NONDETERMINISTIC:
        return "Compare its runs within rounding, not bit by bit; a deterministic kernel repeats."
    return instead.strip() or "Keep its sums and partial results in float32."


def _chosen(variant: str, measured: pd.DataFrame) -> str:
    """How the command line chooses a variant; a user's function by its file or module, layout and sharding."""
    rows = measured[measured["variant"] == variant]
    row = rows[rows["options"].map(fields.is_foreign)].head(1).to_dict("records")
    return (
        " ".join(word for word in fields.words(row[0]) if word.startswith("variant")) if row else f"variant={variant}"
    )


def _alternative(worst: Accused, sound: pd.DataFrame) -> str:
    """Of sound variants the most accurate on as many ranks, by its worst tensor; empty where none is clearly better."""
    here = sound[(sound["rank"] == ALL_RANKS) & (sound["facet"] == worst.facet)]
    here = here[(here["world_size"] == worst.world_size) & (here["world_size"] > 1) & here["tensor"].isin(JUDGED)]
    ratios = geometric_means(here, ["named", "tensor"], ["x_single_device"])["x_single_device"]
    ratios = ratios.groupby("named").max().dropna()
    if ratios.empty or ratios.min() > NEARER * worst.times:
        return ""
    return f"{ratios.idxmin()} ({times(float(ratios.min()))} times single device's error)"
