"""The record between rules and words: all that is known of one variant, or of a table's worst cell, in plain values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accuracy.core.number import count, listed
from accuracy.results.table import EXPLAINS, FOLLOWS, RULED_OUT
from accuracy.verdict import words
from accuracy.verdict.growth import Growth
from accuracy.verdict.label import NONDETERMINISTIC, Numbers, is_bug

FORWARD = ("out", "lse")
CAST = "cast of "
TIMES = r"is (-?[\d.]+(?:e[+-]\d+)?) times what it should be"  # in the clause of a fitted factor
Row = Mapping[Any, Any]


def leading(tensors: tuple[str, ...]) -> tuple[str, ...]:
    """Return the wrong tensors that a sentence begins with: out and lse, else the gradients."""
    forward = tuple(name for name in tensors if name in FORWARD)
    return forward or tuple(name for name in tensors if name != "delta") or tensors


@dataclass(frozen=True)
class Cause:
    """What a tensor's error was reconstructed from, or the nearest hypothesis.

    families, alike: families and names of all hypotheses that predict the same; names, clauses: of those with the
    fewest fitted numbers, the first one's first; leaves, rival: what they and the best rival leave, in times the
    expected rounding; tried: how many hypotheses; blocks: how often those are counted that are not counted once, by the
    ranks of their queries and keys; cases: those that prove it; proving, refuting: where not all cases prove it, the
    settings of those that do and of the others; further: what these others prove of another fault, or one of them of
    another factor.
    """

    tensor: str
    families: tuple[str, ...]
    names: tuple[str, ...]
    clauses: tuple[str, ...]
    leaves: float
    rival: float
    tried: int
    dtype: str
    world_size: int
    blocks: Mapping[tuple[int, int], float] = field(default_factory=dict)
    case: str = ""
    cases: frozenset[str] = frozenset()
    alike: frozenset[str] = frozenset()
    proving: str = ""
    refuting: str = ""
    further: str = ""

    @property
    def proven(self) -> bool:
        """Whether it explains everything and no rival does."""
        return self.leaves <= EXPLAINS and self.rival >= RULED_OUT

    def differs_from(self, other: "Cause") -> bool:
        """Whether both are factors, and other ones: by more than a tenth of what the larger one is off by."""
        found = [re.search(TIMES, each.clauses[0]) for each in (self, other)]
        off, others = (float(each[1]) - 1 if each else 0.0 for each in found)
        return all(found) and abs(off - others) > 0.1 * max(abs(off), abs(others))

    @property
    def is_cast(self) -> bool:
        """Whether a coarser format is the cause."""
        return self.names[0].startswith(CAST)

    @property
    def text(self) -> str:
        """The cause, those that cannot be told from it, and which of the cases prove it, where not all do."""
        clauses = " or, which is the same here, ".join(list(dict.fromkeys(self.clauses))[:3])
        if self.further:
            return f"{clauses}; elsewhere {self.further}"
        if self.refuting:
            return f"{clauses} (proven with {self.proving}, not with {self.refuting})"
        return clauses + (f" (proven in {self.proving})" if self.proving else "")


@dataclass(frozen=True)
class Width:
    """How far a healthy variant is from the reference in dtypes of one width, in times single device's error.

    times: the largest on Gaussian inputs, NaN in float64, whose ratio says nothing; most, inputs: the largest of all.
    """

    dtypes: tuple[str, ...]
    times: float
    most: float
    inputs: str


@dataclass(frozen=True)
class Facts:
    """What is known of one variant. Its tensors, dtypes and numbers are those of the label that leads."""

    variant: str
    label: str  # what is reported: the gravest
    leads: str  # what picks the sentence: that runs differ is told before the bug that one of them shows
    finding: str  # with its numbers: of the most telling verdict
    numbers: Numbers
    of_dtype: str = ""  # of that verdict
    tensors: tuple[str, ...] = ()  # those that have the leading label
    others: tuple[str, ...] = ()  # further ones that are wrong
    coarser: tuple[str, ...] = ()  # beside a bug, those that only stop getting better at a coarser dtype
    # where
    dtypes: tuple[str, ...] = ()  # those that have it
    sound_dtypes: tuple[str, ...] = ()  # those in which these tensors merely round, by clearly less than the bug
    hidden_dtypes: tuple[str, ...] = ()  # those in which they do, by so much that they may have the bug, too
    right_alone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by tensor, where others are wrong
    only_dtypes: tuple[str, ...] = ()  # those measured under the condition that shows it, where others were not
    run_dtypes: tuple[str, ...] = ()  # those measured under any
    floors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by format, dtypes of out and lse that show it
    world_sizes: tuple[int, ...] = ()  # those that have it
    ranks: tuple[int, ...] = ()  # the wrong ranks of the largest of them
    trend: str = ""  # of the error over these ranks: growing, falling
    # under which condition
    settings: tuple[tuple[str, ...], ...] = ()  # a group of alternatives each: all wrong problems, no right one has one
    settings_right: tuple[str, ...] = ()  # alternatives: all right problems have one, and no wrong one
    wrong_problems: int = 0  # of so many problems, where no setting tells them from right ones
    problems: int = 0
    example: tuple[str, ...] = ()  # settings of a wrong one of these
    sizes_wrong: tuple[int, ...] = ()
    sizes_right: tuple[int, ...] = ()
    inputs: tuple[str, ...] = ()  # those that show it
    # why, and how much
    causes: Mapping[str, Cause] = field(default_factory=dict)  # by tensor
    otherwise: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by dtype, tensor: errors of no cause
    gain: float | None = None  # of the first leading tensor
    growth: Mapping[str, Growth] = field(default_factory=dict)  # by tensor
    ratios: tuple[float, ...] = ()  # of the errors of dq, dk and dv
    widths: tuple[Width, ...] = ()  # of a healthy variant
    # what was measured, and what was not
    missing_sizes: Mapping[int, str] = field(default_factory=dict)  # numbers of ranks without a number, and why
    inside: frozenset[str] = frozenset()  # facts of a user's function (`accuracy.verdict.inside`)
    kept_sum: str = ""  # that sums over keys are kept in 16 bits, or that errors grow as if they were
    unsteady: tuple[str, ...] = ()  # tensors whose sums are added in another order from call to call
    window: str = ""  # as what it is told one, where its signature leaves that open
    arithmetic: str = ""  # what it was found to compute its products in, in words
    not_tried: tuple[str, ...] = ()
    not_taken: tuple[str, ...] = ()  # shapes that a user's function refused when it was asked, and why
    failed: int = 0  # of so many cases
    cases: int = 0
    failures: tuple[tuple[int, str, str], ...] = ()  # of each kind: cases, the first one's settings, the reason
    unmeasured: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # dtypes by reason
    not_returned: tuple[str, ...] = ()  # tensors
    unjudged: tuple[str, ...] = ()  # inputs
    step: Row | None = None  # the first traced one outside of the rounding band; {} where none is
    account: tuple[Row, ...] = ()  # findings of the trace

    @property
    def size(self) -> int:
        """The largest number of ranks that has it."""
        return max(self.world_sizes, default=0)

    @property
    def run_in(self) -> str:
        """The dtypes in which what shows it was run, where the run has others: `float32 only`, or `no other dtype` than
        those that are wrong or right."""
        if not self.only_dtypes or self.only_dtypes == self.run_dtypes:
            return ""
        named = {*self.only_dtypes} <= {*self.dtypes, *self.sound_dtypes, *self.hidden_dtypes}
        return "no other dtype" if named else f"{listed(self.only_dtypes)} only"

    @property
    def lead(self) -> tuple[str, ...]:
        """The tensors that the sentence begins with."""
        return leading(self.tensors)

    @property
    def proven(self) -> list[Cause]:
        """The proven causes of the leading tensors; none where what leads does not repeat."""
        return [] if self.leads == NONDETERMINISTIC else [x for x in map(self.causes.get, self.lead) if x and x.proven]

    @property
    def consequences(self) -> tuple[str, ...]:
        """The other tensors that are wrong: made of the leading ones, or wrong too."""
        return tuple(x for x in (*self.tensors, *self.others) if x not in (*self.lead, "delta"))

    @property
    def following(self) -> tuple[str, ...]:
        """The consequences whose error is made of the leading tensors', or has the same cause."""
        first = [self.causes[x] for x in self.lead if x in self.causes]
        names = {name for each in first for name in each.names}
        same = names | {f"{name} (backward)" for name in names} | {FOLLOWS}
        found = [x for x in map(self.causes.get, self.consequences) if x and x.proven and same & {*x.names}]
        return tuple(each.tensor for each in found if not (first and all(map(each.differs_from, first))))

    @property
    def steps(self) -> str:
        """`right to 2 ranks, wrong from 4 on`, of a bug, where these numbers of ranks were measured; else empty."""
        right, wrong = max(self.sizes_right, default=0), min(self.sizes_wrong, default=0)
        return f"right to {count(right, 'rank')}, wrong from {wrong} on" if self.is_bug and 0 < right < wrong else ""

    @property
    def certain_growth(self) -> Mapping[str, Growth]:
        """By tensor, the growth that an exponent tells: none of what has a proven cause or goes in a step."""
        told = {} if self.proven or self.steps else self.growth
        return {name: each for name, each in told.items() if each.word != "unclear"}

    @property
    def is_bug(self) -> bool:
        """Whether the variant is wrong, not merely rounding."""
        return is_bug(self.label, self.numbers)

    @property
    def sentence(self) -> str:
        """The diagnosis in plain words, and what was not tried."""
        return f"{words.diagnosis(self)} {words.not_tried(self)}".strip()

    @property
    def evidence(self) -> tuple[str, ...]:
        """Further lines: the numbers, proofs, the traced steps, what was not measured."""
        return tuple(words.evidence(self))


@dataclass(frozen=True)
class Worst:
    """The cell that a page is about, seeds as one.

    column: the ratio of the table, `x_single_device`, or `x_floor` where kernels are alone; times: of all ranks
    together; rank, there: the worst rank and its ratio, None where ranks are alike; most: the largest of all cells that
    it was chosen from; named: the variant; spoken: the line's name in a sentence; beyond: of tensors that are not
    judged and go further, the furthest cell each; left_out: rows that it was not chosen from.
    """

    facet: str
    series: str
    spoken: str
    named: str
    kernel: str
    dtype: str
    tensor: str
    world_size: int
    column: str
    times: float
    rank: int | None
    there: float
    most: float
    beyond: "tuple[Worst, ...]" = ()
    left_out: tuple[str, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether kernels are alone: they are their own single device, and only the floor tells them apart."""
        return self.column == "x_floor"
