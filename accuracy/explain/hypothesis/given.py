"""Is it the lse or the delta that the backward is given? Both are read off dq row by row, whatever they are.

With another lse and delta a row of dq is a sum_k P dP k - b sum_k P k: two numbers for D values.
"""

from collections.abc import Iterator

import torch

from accuracy.explain.hypothesis.base import Asked, Hypothesis, always, lazily

CLOSE = 1e-6  # relative: a value as near as this is the right one


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """On dq, where nothing caps the scores."""
    if "dq" not in asked.wrong or asked.case.problem.softcap is not None or asked.case.problem.head_dim < 8:
        return
    right = asked.bases[0][1]
    keys = right.k[:, right.heads]
    columns = torch.stack([(right.backward_weights * right.dp) @ keys, right.backward_weights @ keys], -1) * right.scale
    x = asked.returned["dq"].transpose(1, 2)
    a, b = (torch.linalg.pinv(columns, rcond=1e-12) @ x[..., None]).squeeze(-1).unbind(-1)
    made = (columns @ torch.stack([a, b], -1)[..., None]).squeeze(-1).transpose(1, 2)
    several = right.counts.sum(-1) > 1  # where a row has one key both columns are one
    a = torch.where(several, a, torch.ones_like(a))
    delta = torch.where(several, -b / a, right.delta)
    lse_right = bool(((a - 1).abs() < CLOSE).all())
    delta_right = bool(((delta - right.delta).abs() < CLOSE * right.delta.abs().max()).all())
    which = "delta" if lse_right else "lse" if delta_right else "lse and delta"
    cause = f"the backward is given a wrong {which}, all else in dq being right"
    predicts = {"dq": always(made)}
    if bool((a > 0).all()):  # what dq shows must make dk and dv too
        found = right.but(given=(right.out, right.lse - a.log())).with_stages(delta=lambda x: delta)
        predicts |= {name: lazily(found, name) for name in ("dk", "dv")}
    yield Hypothesis("another lse or delta (backward)", cause, predicts, which, 2 * a.numel())
