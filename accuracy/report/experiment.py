"""What did the experiment ask, expect and find? The sections of `experiments/<name>/README.md`."""

from dataclasses import dataclass

from markupsafe import Markup

from accuracy.report.prose import sections, to_html
from accuracy.results.claim import experiment_folder

TITLES = ("Question", "Prediction", "Finding")


@dataclass(frozen=True)
class Passage:
    """One section of the experiment's README."""

    title: str
    html: Markup


def passages(experiment: str) -> list[Passage]:
    """Question, prediction and finding, as far as the experiment's README has them."""
    folder = experiment_folder(experiment)
    path = folder / "README.md" if folder else None
    if path is None or not path.is_file():
        return []
    found = sections(path.read_text(encoding="utf-8", errors="replace"))
    return [Passage(title, to_html(found[title])) for title in TITLES if found.get(title)]
