"""Keys of zeros that are attended to, and a constant added to the normaliser.

A key of zeros has the score 0: it adds 1 to exp(lse) and nothing to the numerator of out.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from accuracy.explain.hypothesis.base import Asked, Hypothesis, always, gradients_of


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """As much on every row, or on every row of a rank; read off lse, or off out where lse is right or absent."""
    if not asked.forward_wrong:
        return
    right = asked.reference
    for unit, sums, terms in (
        ("keys of zeros", right.lse.exp(), "exp(s)"),
        ("a constant", (right.lse - right.row_max).exp(), "exp(s - max)"),
    ):
        added = _added(asked, sums)
        if added is None:
            continue
        each = asked.shards(added.transpose(1, 2)).flatten(1).median(1).values
        of_all, of_each = ("", each.median().expand_as(each)), (" on some ranks", each)
        for word, per_rank in (of_all, of_each)[: asked.size]:  # one rank is all of them
            near = _nearly(per_rank)
            if not near.any():
                continue
            more = near[asked.owners[0]]
            said = ", ".join(f"{value:.6g}" for value in dict.fromkeys(near.tolist()))
            out = right.out * (sums / (sums + more))[..., None]
            lse = right.lse + torch.log1p(more / sums)
            results = {"out": always(out.transpose(1, 2)), "lse": always(lse.transpose(1, 2))}
            freedom = len(each) if word else 1
            predicts = {**results, **gradients_of(right.but(given=(out, lse)))}
            are_keys = terms == "exp(s)" and bool(((near >= 0) & (near == near.round())).all())
            cause = _of_keys(said) if are_keys else f"{said} is added to the sum of {terms}"
            yield Hypothesis(f"{unit}{word}", cause + word, predicts, said, freedom)


def _nearly(per_rank: Tensor) -> Tensor:
    """Whole numbers where they are within a millionth of one, zeros where they are within one of the largest: however
    small, as a constant against division by zero is, the largest is none."""
    near = torch.where((per_rank - per_rank.round()).abs() < 1e-6, per_rank.round(), per_rank)
    small = per_rank.abs() <= 1e-6 * per_rank.abs().max()
    return torch.where(small, 0.0, torch.where(near == 0, per_rank, near))


def _of_keys(said: str) -> str:
    """Only a whole number is one of keys."""
    return f"rows attend to {said} key{'' if said == '1' else 's'} of zeros too"


def _added(asked: Asked, sums: Tensor) -> Tensor | None:
    """(B, H, Sq): what the sum of exponentials has beyond the right one."""
    right = asked.reference
    if "lse" in asked.wrong:
        return sums * torch.expm1(asked.returned["lse"].transpose(1, 2) - right.lse)
    if "out" not in asked.wrong:
        return None
    x = asked.returned["out"].transpose(1, 2)
    ratio = (x * right.out).sum(-1) / (right.out * right.out).sum(-1)
    return sums * (1 / ratio - 1)
