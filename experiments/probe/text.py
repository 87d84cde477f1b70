"""Answers as a table for the terminal: a block a kernel, a line a question, dtypes that agree in one line."""

from collections.abc import Iterator

from experiments.probe.ask import Report


def block(report: Report) -> str:
    """A kernel's answers; of one that cannot run here, the reason."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    options = ", ".join(f"{key}={value}" for key, value in report.options.items())
    yield f"{report.kernel}{f' ({options})' if options else ''}"
    if report.unsupported:
        yield f"  not here: {report.unsupported}"
        return
    questions = next(iter(report.answers.values()))
    width = max(len(name) for name in questions) + 2
    for name in questions:
        label = name.replace("_", " ")
        for dtypes, text in _agreeing(report, name):
            yield f"  {label:{width}}{f'{dtypes}: ' if dtypes else ''}{text}"
            label = ""


def _agreeing(report: Report, question: str) -> Iterator[tuple[str, str]]:
    """Dtypes with the same answer together; no dtype is named where all agree."""
    groups: dict[str, list[str]] = {}
    for dtype, answers in report.answers.items():
        groups.setdefault(answers[question].text, []).append(dtype)
    for text, dtypes in groups.items():
        yield ("" if len(groups) == 1 else ", ".join(dtypes)), text
