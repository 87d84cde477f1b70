"""The decision's files, for programs and people: each whole or not at all."""

import os
from pathlib import Path

from accuracy.gate.compare import page
from accuracy.gate.decision import Decision
from accuracy.gate.junit import junit
from accuracy.gate.markdown import comment, summary
from accuracy.gate.record import record


def write(decision: Decision, folder: Path) -> None:
    """check.json, junit.xml, summary.md, comment.md and compare.html."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "check.json": record(decision).encode(),
        "junit.xml": junit(decision),
        "summary.md": summary(decision).encode(),
        "comment.md": comment(decision).encode(),
        "compare.html": page(decision),
    }
    for name, content in contents.items():
        hidden = folder / f".{name}.{os.getpid()}"
        hidden.write_bytes(content)
        os.replace(hidden, folder / name)
