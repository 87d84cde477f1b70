"""Ask kernels all questions: every question on disk, in every dtype that a kernel states, whatever a kernel raises."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from accuracy.core import plugins
from accuracy.probe.base import Answer, Subject
from accuracy.probe.subjects import Chosen

QUESTIONS = tuple(sorted(path.stem for path in (Path(__file__).parent / "question").glob("[a-z]*.py")))


@dataclass(frozen=True)
class Report:
    """A kernel's answers by dtype and question; unsupported: why there are none."""

    kernel: str
    options: dict[str, Any]
    unsupported: str = ""
    answers: dict[str, dict[str, Answer]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def report(chosen: Chosen, dtypes: Sequence[str] = (), questions: Sequence[str] = QUESTIONS) -> Report:
    """A kernel's answers in the dtypes that it states (given: only in those of them)."""
    options = dict(chosen.options)
    abilities = chosen.abilities
    if abilities.missing:
        return Report(chosen.name, options, f"kernel {chosen.name} {abilities.missing}")
    stated = [dtype for dtype in abilities.dtypes if not dtypes or dtype in dtypes]
    if not stated:
        has = ", ".join(abilities.dtypes)
        return Report(chosen.name, options, f"kernel {chosen.name} has no {', '.join(dtypes)} here; it has {has}")
    kernel = chosen.build()
    return Report(
        chosen.name,
        options,
        answers={
            dtype: {name: asked(name, Subject(kernel, dtype, chosen.device)) for name in questions} for dtype in stated
        },
    )


def asked(question: str, subject: Subject) -> Answer:
    """A question's answer; what a kernel raises is one too."""
    try:
        with torch.no_grad():
            answer: Answer = plugins.load(f"accuracy.probe.question.{question}").ask(subject)
            return answer
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Answer(f"refused: {text[:160]}", {"error": text[:500]})
