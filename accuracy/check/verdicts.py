"""Bug or rounding, by cell: the verdicts that the gate heeds, `logic` and `invalid`."""

from accuracy.check.cell import Key
from accuracy.check.evidence import Evidence


def verdicts(run: Evidence) -> dict[Key, tuple[str, str]]:
    """Label and sentence of each cell that has one."""
    return {}
