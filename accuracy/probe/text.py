"""Answers as a table for the terminal: a block a kernel, a line a question, dtypes that agree in one line."""

from collections.abc import Iterator, Sequence

from accuracy.probe.ask import Report


def table(reports: Sequence[Report]) -> str:
    """All kernels; those that cannot run here with their reason."""
    return "\n\n".join("\n".join(_block(report)) for report in reports)


def _block(report: Report) -> Iterator[str]:
    options = ", ".join(f"{key}={value}" for key, value in report.options.items())
    yield f"{report.kernel}{f' ({options})' if options else ''}"
    if report.declined:
        yield f"  not here: {report.declined}"
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
