"""Bug or rounding, by cell: the verdicts of `accuracy.verdict`. The gate heeds `logic` and `invalid`."""

from accuracy.results.cell import KEYS, Key, measured
from accuracy.results.run_table import RunTable
from accuracy.verdict.evidence import SUBJECT
from accuracy.verdict.verdict import verdicts as judged


def verdicts(run: RunTable) -> dict[Key, tuple[str, str]]:
    """Label and sentence of each cell that has one; a verdict is of all inputs of a variant, problem and dtype."""
    if run.results.empty:
        return {}
    names = [name for name in (*SUBJECT, "tensor") if name in KEYS]
    found = judged(run.results)
    by_name = {
        tuple(row[name] for name in names): (str(row["label"]), str(row["sentence"]))
        for row in found.to_dict("records")
    }
    places = [KEYS.index(name) for name in names]
    return {
        key: said for key in measured(run) if (said := by_name.get(tuple(key[place] for place in places))) is not None
    }
