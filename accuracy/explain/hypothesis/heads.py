"""Another mapping of query heads to key/value heads, in the attention or in the sums over a group."""

from collections.abc import Iterator

import torch

from accuracy.explain.hypothesis.attention import Stage
from accuracy.explain.hypothesis.base import Asked, Hypothesis, after, altered, gradients_of, setting


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Mappings of the attention, orders of the results' heads, and sums over a group."""
    problem = asked.case.problem
    for word, heads in _maps(problem.heads, problem.heads_kv).items():
        if not torch.equal(heads, asked.reference.heads):
            cause = f"query head h takes key/value head {word}"
            yield from altered(asked, "another head mapping", cause, setting(heads=heads), word)
    orders: dict[str, Stage] = {
        "the heads rolled by 1": lambda x: x.roll(1, 2), "the heads rolled by -1": lambda x: x.roll(-1, 2),
        "the heads in reverse": lambda x: x.flip(2),
    }  # fmt: skip
    for base, predicts in asked.finals():
        for word, move in orders.items():
            for name, predict in predicts.items():
                yield Hypothesis(f"moved: {word}", f"{name} has {word}{base}", {name: after(predict, move)})
    share = problem.heads // problem.heads_kv
    if share > 1:
        for word, sum_of in _sums(problem.heads_kv, share).items():
            for name in ("dk", "dv"):
                for base, attention in asked.bases:
                    made = gradients_of(attention.with_stages(**{f"{name}_heads": sum_of}))
                    yield Hypothesis("another sum over the group", f"{name} is {word}{base}", {name: made[name]}, word)


def _maps(heads: int, kv: int) -> dict[str, torch.Tensor]:
    """The key/value head of each query head, by what that is called."""
    share, head = heads // kv, torch.arange(heads)
    group = head // share
    return {
        "h % Hk": head % kv,
        "h // (H/Hk) + 1": (group + 1) % kv,
        "Hk - 1 - h // (H/Hk)": kv - 1 - group,
        "0 for every h": head * 0,
        "min(h, Hk - 1)": head.clamp_max(kv - 1),
        "(h + 1) // (H/Hk)": (head + 1) // share % kv,
    }


def _sums(kv: int, share: int) -> dict[str, Stage]:
    """What may be made of the query heads of a group in place of their sum, of (B, H, S, D)."""
    place = torch.arange(kv * share) % share

    def only(chosen: torch.Tensor) -> Stage:
        return lambda x: x * chosen.double()[:, None, None]

    found = {
        "the mean over its group of query heads, not the sum": lambda x: x / share,
        "only the first query head of its group": only(place == 0),
        "only the last query head of its group": only(place == share - 1),
        "the sum over the query heads h % Hk, not those of its group": lambda x: (
            x.unflatten(1, (share, kv)).transpose(1, 2).flatten(1, 2)
        ),
    }
    if share > 2:
        found["the sum without the first query head of its group"] = only(place != 0)
        found["the sum without the last query head of its group"] = only(place != share - 1)
    return found
