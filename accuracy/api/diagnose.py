"""`accuracy.diagnose`: does a variant, or a function of one's own, merely round, or is it wrong, and how?"""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from typing_extensions import Unpack

from accuracy.api.measure import execute
from accuracy.api.request import Dtypes, Problem, Subjects, asked, named, request
from accuracy.core.errors import OF_PROBLEM, ConfigError, entry
from accuracy.results.table import HYPOTHESES_SCHEMA, STEPS_SCHEMA, require
from accuracy.runtime.arguments import takes
from accuracy.runtime.collectives import may_share
from accuracy.verdict import diagnosis
from accuracy.verdict.label import NOT_MEASURED, ROUNDING, TOO_LITTLE, badge
from accuracy.verdict.verdict import verdicts


@dataclass(frozen=True)
class Diagnosis:
    """What a table shows.

    sentence: in plain words, a line for each variant, the gravest first; verdicts: a row for each variant, dtype, world
    size and tensor with its label, sentence and numbers; results: the table that was judged; label: the gravest;
    evidence: further lines; is_bug: whether a variant is wrong, or differs from run to run by more than rounding.
    """

    sentence: str
    label: str
    evidence: tuple[str, ...]
    is_bug: bool
    verdicts: pd.DataFrame = field(repr=False)
    results: pd.DataFrame = field(repr=False)

    def __str__(self) -> str:
        """The sentence."""
        return self.sentence

    def _repr_html_(self) -> str:
        """In a notebook: the badge, the sentence, the evidence and the verdicts."""
        word = badge(self.label, self.is_bug)
        color = "#b3261e" if self.is_bug else "#1f6f43" if self.label == ROUNDING else "#8a6100"
        mark = f'<b style="background:{color};color:white;padding:1px 8px;border-radius:3px">{escape(word)}</b>'
        lines = "".join(f"<li>{escape(line)}</li>" for line in self.evidence)
        columns = ["variant", "dtype", "world_size", "tensor", "label", "error_rel"]
        table = self.verdicts[columns].to_html(index=False, float_format="{:.3g}".format)
        shown = f"<details><summary>{len(self.verdicts)} verdicts</summary>{table}</details>"
        sentences = "<br>".join(escape(line) for line in self.sentence.splitlines())
        return f"<div><p>{mark} {sentences}</p><ul>{lines}</ul>{shown}</div>"

    def raise_if_faulty(self) -> None:
        """Raises AssertionError where `is_bug` is true, where nothing was measured, or one rank alone of several."""
        __tracebackhide__ = True
        if self.is_bug or self.label in (NOT_MEASURED, *TOO_LITTLE):
            error = AssertionError("\n".join([self.sentence, *self.evidence]))
            error.results = self.results  # type: ignore[attr-defined]
            raise error


@entry(OF_PROBLEM)
def diagnose(
    variant: Subjects | pd.DataFrame, *, dtype: Dtypes | None = None, world_size: Any = None, seed: Any = None,
    sharding: str = "contiguous", layout: str = "bshd", device: str = "auto", output_dir: str | Path | None = None,
    case_seconds: float | None = None, arithmetic: str | None = None, progress: bool = True,
    **problem: Unpack[Problem],
) -> Diagnosis:  # fmt: skip
    """Measure the cases that decide between a bug and rounding, and say which it is.

    variant: as in `accuracy.measure`, or a table of its rows, which is judged as it is. The cases are those of
    `accuracy experiment=diagnose`: four dtypes, variants at 1 to 8 ranks, functions at 1 to 4, inputs whose exact
    answer is known, runs that must not change a bit. Other arguments have the meaning that they have in
    `accuracy.measure`, and what is given is never left: every case has the given dtype, mask, lengths, ranks.
    arithmetic: what a function may compute its products in where that is coarser than the dtype: `float32` (nothing
    coarser than float32), `tf32` ...; None: the diagnosis finds out, says so, and holds the function to that.

    A function that shares its work (it takes a group) is measured on 1, 2, 3 and 4 ranks, which are started here,
    also several on one GPU. Under torchrun, or in a process group of the caller's, every process calls this, and the
    function runs on these processes. Where one rank alone could be had, the label is `one_rank`; world_size=1 says that
    one rank is meant.

    Raises ConfigError, a ValueError, for an argument that cannot be, or that no case could use.
    """
    if isinstance(variant, pd.DataFrame):
        return _judge(variant, *(schema.empty_table().to_pandas() for schema in (STEPS_SCHEMA, HYPOTHESES_SCHEMA)))
    names, functions = named(variant)
    if world_size is None and functions and not names and not any(map(may_share, functions.values())):
        world_size = 1
    words = ["experiment=diagnose"]
    if any(not takes(each, "softmax_scale") for each in functions.values()):
        words.append("problem.softmax_scale=null")  # the experiment has another than a function's own
    run = execute(request(variant, asked(locals()), words), output_dir, progress=progress)
    return _judge(run.results, run.steps, run.hypotheses)


def _judge(results: pd.DataFrame, steps: pd.DataFrame, hypotheses: pd.DataFrame) -> Diagnosis:
    require(results, ("variant", "case_id", "tensor", "error_rel"))
    if results.empty:
        raise ConfigError("the table has no rows; give what accuracy.measure or accuracy.load returns")
    judged = verdicts(results)
    found = diagnosis.diagnoses(judged, results, steps, hypotheses)
    evidence = tuple(line for each in found for line in each.evidence)
    sentence, is_bug = "\n".join(diagnosis.sentences(found)), any(each.is_bug for each in found)
    return Diagnosis(sentence, found[0].label, evidence, is_bug, judged, results)
