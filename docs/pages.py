"""The pages of the site as Markdown: an index by importance, a page a report, and files of the repository."""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import accuracy
from accuracy.report.build import ReportSummary
from docs.links import relinked

GUIDES = {  # files of the repository that are pages, in the order of the contents
    "README.md": "guide/introduction.md",
    "experiments/ISSUES.md": "guide/issues.md",
    "docs/functions.md": "guide/functions.md",
    "docs/live.md": "guide/live.md",
    "configs/README.md": "guide/running.md",
    "reports/README.md": "guide/evidence.md",
    "docs/columns.md": "guide/columns.md",
    "accuracy/gate/README.md": "guide/gate.md",
    "CONTRIBUTING.md": "guide/contributing.md",
    "CHANGELOG.md": "guide/changelog.md",
}
TUTORIAL = "examples/quickstart.ipynb"
FINDINGS = "experiments/FINDINGS.md"
LEADERBOARD = "leaderboard.md"
BOARD = "reports/leaderboard.html"  # beside the reports' pages, to which its numbers lead
API = f"""# API

```{{eval-rst}}
.. automodule:: accuracy
   :members: {", ".join(name for name in accuracy.__all__ if name != "plot")}
.. automodule:: accuracy.plot
   :members:
```
"""


@dataclass(frozen=True)
class Report:
    """A published run: its place in the repository, and what was written of it."""

    place: str  # reports/EXPERIMENT/DEVICE
    summary: ReportSummary

    @property
    def page(self) -> str:
        """Its page on the site."""
        return f"{self.place}.md"


def places(root: Path, reports: Sequence[Report]) -> dict[str, str]:
    """Of each file or folder of the repository that has a page, the page."""
    found = {name: page for name, page in GUIDES.items() if (root / name).is_file()}
    found |= {FINDINGS: "index.md", TUTORIAL: "guide/tutorial.ipynb"}
    for path in sorted(root.glob("experiments/*/README.md")):
        found[f"experiments/{path.parent.name}/README.md"] = f"experiments/{path.parent.name}.md"
    return found | {report.place: report.page for report in reports}


def index(text: str, reports: Sequence[Report], pages: Mapping[str, str], board: bool) -> str:
    """The findings by importance, each with its sentence."""
    head, *findings = re.split(r"^(?=\d+\. \*\*)", text, flags=re.MULTILINE)
    parts = [
        relinked(head.replace("# Findings", "# How accurate is distributed attention?", 1), FINDINGS, "index.md", pages)
    ]
    for place, finding in enumerate(findings, 1):
        title, _, rest = " ".join(finding.split()).partition("** ")
        title = re.sub(r"^\d+\. \*\*", "", title).removesuffix("**").rstrip(".")
        parts += [f"## {place}. {title}", relinked(rest, FINDINGS, "index.md", pages)]
    return "\n\n".join([*parts, _contents(pages, reports, board)]) + "\n"


def leaderboard_page(names: Sequence[str]) -> str:
    """The way to the board, and what a search finds it by. names: of what it ranks."""
    link = f'<p><a class="open" href="{BOARD}">Open the leaderboard</a></p>'
    question = "Which implementation of distributed attention is how accurate?"
    return f"# Leaderboard\n\n{question}\n\n{link}\n\nRanked: {_plain(', '.join(names))}.\n"


def report_page(report: Report, pages: Mapping[str, str]) -> str:
    """Headline and facts of a report, so that a search finds it, and the way to all of it."""
    answer, experiment = report.summary.answer, report.place.split("/")[1]
    readme = relinked(
        f"[{experiment}](../../../experiments/{experiment}/README.md)", f"{report.place}/x", report.page, pages
    )
    parts = [
        f"# {_plain(f'{experiment} on {Path(report.place).name}')}",
        f"**{_plain(f'{answer.badge}: {answer.title}')}**",
        *(f"- {_plain(' '.join(tile))}" for tile in answer.tiles),
        _plain(answer.advice),
        f"<p>{html.escape(answer.facts)}</p>",
        f'<p><a class="open" href="{Path(report.place).name}/report.html">Open the report: charts, ranks, tokens, rows'
        "</a></p>",
        f"Experiment: {readme}",
    ]
    return "\n\n".join(parts) + "\n"


def _contents(pages: Mapping[str, str], reports: Sequence[Report], board: bool) -> str:
    first = [*([LEADERBOARD] if board else []), pages[TUTORIAL]]
    guides = [page for name, page in pages.items() if name in GUIDES]
    experiments = [page for page in pages.values() if page.startswith("experiments/")]
    groups = {"Start": [*first, "api.md"], "Guide": guides, "Reports": [each.page for each in reports],
              "Experiments": experiments}  # fmt: skip
    trees = (
        f"```{{toctree}}\n:hidden:\n:caption: {name}\n\n" + "\n".join(own) + "\n```" for name, own in groups.items()
    )
    return "\n\n".join(trees)


def _plain(text: str) -> str:
    """Text that makes no Markdown."""
    return re.sub(r"([\\`*_{}\[\]()#!|~$<>])", r"\\\1", " ".join(text.split()))
