"""Rule 3, of single elements: an error that no rounding in the dtype makes.

`beyond` counts the elements of a tensor that are farther from the reference than a running error bound for rounding
everything that may be stored to the dtype, or to a coarser one that the case asks for (`accuracy/bound/README.md`). It
is recorded where errors are explained (`reruns.explain`). One element is enough: the bound is certain. Asked after the
ladder, which sees a tensor that was rounded to another format as a whole by its norm; what is left are few elements,
whose error the norm hides. The bound is loose: other rules infer from ratios what this one proves.
"""

from accuracy.verdict.evidence import Evidence
from accuracy.verdict.label import LOGIC, Finding


def judge(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    rows = evidence.whole.where(evidence.whole["beyond"] > 0)
    if not len(rows):
        return None
    count, inputs = int(rows["beyond"].max()), ", ".join(sorted(set(rows["inputs"])))
    are = "value is" if count == 1 else "values are"
    text = f"{count} {are} farther from the reference than any rounding in {evidence.dtype} carries"
    return Finding(LOGIC, f"{text} ({inputs} inputs)", {"beyond": float(count), "inputs": inputs})
