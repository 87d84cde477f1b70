"""Is softmax_scale honoured, forward and backward, and how exactly? One key: lse is scale q k, dq and dk go with it."""

from experiments.probe.base import Answer, Subject

LOW, HIGH, ODD = 0.125, 0.5, 0.3
WRONG = 1e-2  # relative; a scale that is not honoured is off by a factor
ROUNDED = 1e-10  # a float64 kernel whose scale went through float32 is off by about 1e-8


def ask(subject: Subject) -> Answer:
    """honoured, or where it is not."""
    values = {scale: _values(subject, scale) for scale in (LOW, HIGH, ODD)}
    errors = {
        name: max(abs(values[scale][name] / values[LOW][name] * LOW / scale - 1) for scale in (HIGH, ODD))
        for name in values[LOW]
    }
    wrong = [name for name, error in errors.items() if not error < WRONG]
    if wrong:
        return Answer(f"ignored in {', '.join(wrong)}", errors)
    if subject.dtype == "float64" and max(errors.values()) > ROUNDED:
        return Answer("rounded to fewer bits than float64", errors)
    return Answer("honoured", errors)


def _values(subject: Subject, scale: float) -> dict[str, float]:
    """lse, and dq and dk for an out of zero, so that dS is 1."""
    ones = subject.zeros(1)
    ones[..., 0] = 1
    x = subject.given(ones)
    _, lse = subject.forward(x, x, x, scale=scale)
    dq, dk, _ = subject.backward(x, x, x, x, x * 0, lse, scale=scale)
    return {"lse": float(lse.flatten()[0]), "dq": float(dq.flatten()[0]), "dk": float(dk.flatten()[0])}
