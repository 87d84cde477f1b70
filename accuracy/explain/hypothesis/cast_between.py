"""A cast between the blocks: of each block's partial, of the running sums, of what travels, of a block's weights.

Only where the case's dtype is finer; a format's own rounding is no fault.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS
from accuracy.explain.hypothesis.attention import Attention, Stage
from accuracy.explain.hypothesis.base import BACKWARD, Asked, Hypothesis, altered, always, rounder
from accuracy.explain.hypothesis.blocks import contributions
from accuracy.explain.hypothesis.merge import Blocks, Formula, State, merged, orders, right


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Every format below the case's own, at every place."""
    if asked.size < 2 or asked.case.problem.queries != asked.case.problem.seqlen:
        return
    for form in FORMATS.values():
        if form.precision < FORMATS[asked.case.dtype].precision:
            to = rounder(getattr(torch, form.name))
            yield from _wire(asked, form.name, to)
            if set(asked.wrong) & {"out", "lse"}:
                yield from _merges(asked, form.name, to)
            for base, attention in asked.bases:
                for name in BACKWARD:
                    if name in asked.wrong:
                        yield from _sums(asked, name, attention, base, form.name, to)


def _wire(asked: Asked, form: str, to: Stage) -> Iterator[Hypothesis]:
    """Keys, values or both that came from another rank: both versions side by side, each seen by its own queries."""
    queries, keys = asked.owners
    same = (queries[:, None] == keys[None]).double()
    length = asked.case.problem.seqlen

    def folded(x: Tensor) -> Tensor:
        return x[:, :, :length] + x[:, :, length:]

    for names in (("k", "v"), ("k",), ("v",)):

        def change(attention: Attention, names: tuple[str, ...] = names) -> Attention:
            k, v = (
                torch.cat([x, to(x) if name in names else x], 2) for name, x in (("k", attention.k), ("v", attention.v))
            )
            counts = torch.cat([attention.counts * same, attention.counts * (1 - same)], -1)
            return attention.but(k=k, v=v, counts=counts).with_stages(dk_heads=folded, dv_heads=folded)

        word = " and ".join(names)
        verb = "are" if len(names) > 1 else "is"
        yield from altered(
            asked, f"cast of {word} on the wire", f"{word} of other ranks {verb} cast to {form}", change, form
        )


def _merges(asked: Asked, form: str, to: Stage) -> Iterator[Hypothesis]:
    """Of each block's out, of the running out and lse, and of the weights inside of a block."""
    plain = Blocks(asked, asked.reference)
    towards = orders(asked)
    first = next(iter(towards.values()))

    def cut_weights(attention: Attention) -> Attention:
        shift = torch.exp((attention.exact_lse - attention.row_max).clamp(-700, 700))[..., None]
        return attention.with_stages(weights=lambda x: to(x * shift) / shift)

    places = {
        "each block's out is": plain.changed(out=to),
        "each block's lse is": plain.changed(lse=to),
        "each block's exp(s - max) is": Blocks(asked, asked.reference, cut_weights),
    }
    for word, blocks in places.items():
        yield merged(asked, blocks, f"cast of {word[:-3]}", f"{word} cast to {form}", first, form, right)
    formulas: dict[str, Formula] = {
        "the running out is": lambda *state: _of_out(to, right(*state)),
        "the running lse is": lambda *state: _of_lse(to, right(*state)),
        "the running out and lse are": lambda *state: _of_out(to, _of_lse(to, right(*state))),
    }
    for order, sources in towards.items():
        for word, formula in formulas.items():
            yield merged(
                asked, plain, f"cast of {word[:-3]}", f"{word} cast to {form}", sources, f"{form}, {order}", formula
            )


def _of_out(to: Stage, state: State) -> State:
    return to(state[0]), state[1]


def _of_lse(to: Stage, state: State) -> State:
    return state[0], to(state[1])


def _sums(asked: Asked, name: str, attention: Attention, base: str, form: str, to: Stage) -> Iterator[Hypothesis]:
    """Of each block's gradient, and of the sum after each block, in either direction of the ring."""
    sums, _ = contributions(asked, name, attention)
    size, like = asked.size, asked.shards(asked.returned[name])

    def block(rank: int, hop: int, ahead: int) -> Tensor:
        other = (rank + ahead * hop) % size
        return sums[rank][other] if name == "dq" else sums[other][rank]

    for ahead in (-1, 1):
        each, total, both = (torch.zeros(size, sums[0][0].numel(), dtype=torch.float64) for _ in range(3))
        for rank in range(size):
            for hop in range(size):
                here = block(rank, hop, ahead)
                each[rank] += to(here)
                total[rank] = to(total[rank] + here)
                both[rank] = to(both[rank] + to(here))
        for idea, word, made in (
            ("each block", f"{name} of each block is", each),
            ("sum", f"the sum of {name} is, after each hop,", total),
            ("each block and sum", f"{name} of each block and their sum are", both),
        ):
            whole = asked.joined(made.view_as(like))
            direction = "r + 1" if ahead > 0 else "r - 1"
            cause = f"{word} cast to {form}{base}"
            yield Hypothesis(
                f"cast of gradients: {idea}", cause, {name: always(whole)}, f"{form}, rank {direction} next"
            )
