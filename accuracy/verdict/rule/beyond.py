"""Rule 3, of single elements: an error that no rounding in the dtype makes.

`beyond` counts the elements of a tensor that are farther from the reference than a running error bound for rounding
everything that may be stored to the dtype, or to a coarser one that the case asks for (`accuracy/bound/README.md`). It
is recorded where errors are explained (`reruns.explain`). One element is enough: the bound is certain. Asked after the
ladder, which sees a tensor that was rounded to another format as a whole by its norm; what is left are few elements,
whose error the norm hides. The bound is loose: other rules infer from ratios what this one proves.

It is that of the usual order of products. A user's function may give every element a part of all others' rounding, as
the gradient of a mean that is taken off all keys does; so its elements are held to `rounding_band` of the tensor, too.
What a smaller fault is in float32, it is in float64, where the band is 1e-13.
"""

from accuracy.core.dtype import rounding_band
from accuracy.verdict import inside
from accuracy.verdict.evidence import Evidence
from accuracy.verdict.label import LOGIC, Finding


def judge(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    rows = evidence.whole
    band = rounding_band(evidence.tensor, evidence.dtype) if inside.is_foreign(evidence) else 0.0
    rows = rows.where((rows["beyond"] > 0) & (rows["error_max"] > band * rows["reference_rms"]))
    if not len(rows):
        return None
    count, inputs = int(rows["beyond"].max()), ", ".join(sorted(set(rows["inputs"])))
    are = "value is" if count == 1 else "values are"
    text = f"{count} {are} farther from the reference than any rounding in {evidence.dtype} carries"
    return Finding(LOGIC, f"{text} ({inputs} inputs)", {"beyond": float(count), "inputs": inputs})
