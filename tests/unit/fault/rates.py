"""From the verdicts of planted faults and healthy variants to two rates. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from accuracy.results.table import ALL_RANKS
from accuracy.verdict.inside import is_healthy
from accuracy.verdict.label import BIASED, EXCESS_ROUNDING, NOT_MEASURED, ROUNDING
from accuracy.verdict.proof import causes

ROUND_MORE = {"llama3": "dk dv", "double_ring": "dq dk dv", "te_all_gather": "dk dv", "te_p2p": "out delta dq dk dv"}
"""No alarm: in the inputs' dtype llama3's reduce-scatter adds hop by hop, LoongTrain's double ring its windows'
gradients, TransformerEngine's ring all that it keeps; the verdict says that they round more, and where the answer is 1
that such a sum is too small: below 1 numbers are closer."""


@dataclass(frozen=True)
class Detection:
    """What was said of one planted fault. missed: tensors that did not get their label; accused: right ones that got
    one."""

    fault: str
    expected: Mapping[str, str]
    found: Mapping[str, tuple[str, ...]]
    missed: tuple[str, ...]
    accused: tuple[str, ...] = ()

    @property
    def caught(self) -> bool:
        """Whether all wrong tensors were named and no right one was."""
        return not self.missed and not self.accused


@dataclass(frozen=True)
class FalseAlarms:
    """combinations: (variant, dtype, world size, tensor, seed, inputs) that were judged healthy or not; alarms: the
    verdicts that were not `rounding`."""

    combinations: int
    alarms: pd.DataFrame
    alarmed: int


def detection(fault: str, expected: Mapping[str, str], verdicts: pd.DataFrame, right: Iterable[str] = ()) -> Detection:
    """A tensor that is to be `rounding`, as the `right` ones are, must be so everywhere; any other label must appear in
    some dtype and world; "": any label does. A fact, as float32 inside, is rounding."""
    mine = verdicts[(verdicts["variant"] == fault) & (verdicts["label"] != NOT_MEASURED)]
    mine = mine.assign(label=mine["label"].mask(is_healthy(mine), ROUNDING))
    found = {
        str(tensor): tuple(sorted(set(rows["label"]) - {ROUNDING})) or (ROUNDING,)
        for tensor, rows in mine.groupby("tensor")
    }

    def named(tensor: str, label: str) -> bool:
        labels = found.get(tensor, (ROUNDING,))
        return label in labels if label else labels != (ROUNDING,)

    missed = tuple(tensor for tensor, label in expected.items() if not named(tensor, label))
    return Detection(fault, expected, found, missed, tuple(tensor for tensor in right if named(tensor, "")))


def false_alarms(names: Iterable[str], verdicts: pd.DataFrame, results: pd.DataFrame) -> FalseAlarms:
    """Of the healthy variants: every measured combination, and the verdicts that call one faulty."""
    key = ["variant", "kernel", "mask", "softcap", "seqlen", "dtype", "world_size", "tensor"]
    mine = verdicts[verdicts["variant"].isin(list(names)) & (verdicts["label"] != NOT_MEASURED)]
    more = [row.label in (EXCESS_ROUNDING, BIASED) and row.tensor in ROUND_MORE.get(row.variant, "").split()
            for row in mine.itertuples()]  # fmt: skip
    mine = mine[~pd.Series(more, mine.index, dtype=bool)]
    rows = results[(results["rank"] == ALL_RANKS) & results["tensor"].notna() & results["error_rel"].notna()]
    rows = rows.drop_duplicates([*key, "seed", "inputs"])[key]
    alarms = mine[mine["label"] != ROUNDING]
    return FalseAlarms(len(rows.merge(mine[key])), alarms, len(rows.merge(alarms[key])))


SAME_CAUSE = {"mask": ("pairs",), "blocks": ("pairs",), "delta": ("backward", "given"), "partial": ("given",)}
"""By a family, others that say the same of a fault: which pairs of query and key count, which lse or delta was read."""


@dataclass(frozen=True)
class Explanation:
    """What was said of a planted fault's cause. proven: the families of the proven hypotheses; right: whether one of
    them is a true one of the fault, None where it states none or nothing was proven."""

    fault: str
    proven: frozenset[str]
    right: bool | None


def explanation(fault: str, true: Iterable[str], hypotheses: pd.DataFrame, results: pd.DataFrame) -> Explanation:
    """true: the families of hypotheses that explain the fault."""
    found = causes(hypotheses, results[results["variant"] == fault])
    proven = frozenset(family for each in found.values() if each.proven for family in each.families)
    same = {"follows", *true, *(other for family in true for other in SAME_CAUSE.get(family, ()))}
    wrong = [each for each in found.values() if each.proven and not set(each.families) & same]
    return Explanation(fault, proven, not wrong if proven and set(true) else None)
