"""The decision's files, for programs and people: each whole or not at all."""

from pathlib import Path

from accuracy.core.files import whole_file
from accuracy.gate.compare import page
from accuracy.gate.decision import Decision
from accuracy.gate.junit import junit
from accuracy.gate.markdown import comment, summary
from accuracy.gate.record import record


def write(decision: Decision, folder: Path) -> None:
    """check.json, junit.xml, summary.md, comment.md and compare.html."""
    contents = {
        "check.json": record(decision).encode(),
        "junit.xml": junit(decision),
        "summary.md": summary(decision).encode(),
        "comment.md": comment(decision).encode(),
        "compare.html": page(decision),
    }
    for name, content in contents.items():
        with whole_file(folder / name) as handle:
            handle.write(content)
