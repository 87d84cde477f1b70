"""`accuracy.diagnose`: does a variant, or a function of one's own, merely round, or is it wrong, and how?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.api.measure import execute
from accuracy.api.request import Subjects, named, request
from accuracy.core.errors import ConfigError
from accuracy.results.table import HYPOTHESES_SCHEMA, STEPS_SCHEMA
from accuracy.runtime.arguments import takes
from accuracy.verdict import diagnosis
from accuracy.verdict.label import NOT_MEASURED
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

    def raise_if_faulty(self) -> None:
        """Raises AssertionError where `is_bug` is true, or where nothing was measured."""
        __tracebackhide__ = True
        if self.is_bug or self.label == NOT_MEASURED:
            error = AssertionError("\n".join([self.sentence, *self.evidence]))
            error.results = self.results  # type: ignore[attr-defined]
            raise error


def diagnose(
    variant: Subjects | pd.DataFrame,
    *,
    dtype: Any = None,
    world_size: Any = None,
    seed: Any = None,
    sharding: str = "contiguous",
    layout: str = "bshd",
    device: str = "auto",
    output_dir: str | Path | None = None,
    case_seconds: float | None = None,
    **problem: Any,
) -> Diagnosis:
    """Measure the cases that decide between a bug and rounding, and say which it is.

    variant: as in `accuracy.measure`, or a table of its rows, which is judged as it is. The cases are those of
    `accuracy experiment=diagnose`: four dtypes, 1 to 8 ranks (a function: one rank unless world_size says more, then
    also 3 and 5, and 16 and 32 only where world_size has as many), inputs whose exact answer is known, runs that must
    not change a bit; other arguments change them, with the meaning that they have in `accuracy.measure`. Raises
    ConfigError, a ValueError, for an argument that cannot be.
    """
    if isinstance(variant, pd.DataFrame):
        return _judge(variant, *(schema.empty_table().to_pandas() for schema in (STEPS_SCHEMA, HYPOTHESES_SCHEMA)))
    if world_size is None and not _is_named(variant):
        world_size = 1
    arguments = {"dtype": dtype, "world_size": world_size, "seed": seed, "sharding": sharding, "layout": layout,
                 "device": device, "case_seconds": case_seconds}  # fmt: skip
    words = ["experiment=diagnose"]
    if any(not takes(each, "softmax_scale") for each in named(variant)[1].values()):
        words.append("problem.softmax_scale=null")  # the experiment has another than a function's own
    run = execute(request(variant, arguments | problem, tuple(words)), output_dir)
    return _judge(run.results, run.steps, run.hypotheses)


def _is_named(variant: Subjects) -> bool:
    """Whether there is no function among the variants."""
    if isinstance(variant, Iterable) and not isinstance(variant, str | Mapping):
        return all(isinstance(each, str) for each in variant)
    return isinstance(variant, str)


def _judge(results: pd.DataFrame, steps: pd.DataFrame, hypotheses: pd.DataFrame) -> Diagnosis:
    missing = sorted({"variant", "case_id", "tensor", "error_rel"} - set(results.columns))
    if missing or results.empty:
        lacks = f"no column {missing[0]}" if missing else "no rows"
        raise ConfigError(f"the table has {lacks}; give what accuracy.measure or accuracy.load returns")
    judged = verdicts(results)
    found = diagnosis.diagnoses(judged, results, steps, hypotheses)
    evidence = tuple(line for each in found for line in each.evidence)
    sentence, is_bug = "\n".join(diagnosis.sentences(found)), any(each.is_bug for each in found)
    return Diagnosis(sentence, found[0].label, evidence, is_bug, judged, results)
