"""Ask kernels all questions: every question on disk, in every dtype that a kernel states, whatever a kernel raises."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from accuracy.core import plugins
from accuracy.core.case import Part
from accuracy.core.errors import one_line
from accuracy.kernel.base import kernel_of
from experiments.probe.base import Answer, Subject

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


def report(part: Part, device: str, dtypes: Sequence[str] = (), questions: Sequence[str] = QUESTIONS) -> Report:
    """A kernel's answers on a device in the dtypes that it states there (given: only in those of them)."""
    knobs, options = kernel_of(part), dict(part.options)
    abilities = knobs.abilities(device)
    if abilities.missing:
        return Report(part.name, options, f"kernel {part.name} {abilities.missing}")
    stated = [dtype for dtype in abilities.dtypes if not dtypes or dtype in dtypes]
    if not stated:
        has = ", ".join(abilities.dtypes)
        return Report(part.name, options, f"kernel {part.name} has no {', '.join(dtypes)} here; it has {has}")
    kernel = knobs.build(device)
    subjects = {dtype: Subject(kernel, dtype, device) for dtype in stated}
    answers = {dtype: {name: asked(name, subject) for name in questions} for dtype, subject in subjects.items()}
    return Report(part.name, options, answers=answers)


def asked(question: str, subject: Subject) -> Answer:
    """A question's answer; what a kernel raises is one too."""
    try:
        with torch.no_grad():
            answer: Answer = plugins.load(f"experiments.probe.question.{question}").ask(subject)
            return answer
    except Exception as error:
        text = one_line(error)
        return Answer(f"refused: {text[:160]}", {"error": text[:500]})
