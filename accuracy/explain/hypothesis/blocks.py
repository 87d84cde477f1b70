"""How often does each (query rank, key rank) block enter each rank's result? Read by least squares.

A gradient is a sum over blocks, each known from the reference; a result that holds some of them not at all, twice, or
those of other ranks' positions is a sum with other coefficients. As many are fitted as there are blocks, to thousands
of values. In the forward exp(lse) and the numerators of out are such sums.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from accuracy.explain.hypothesis.attention import Attention
from accuracy.explain.hypothesis.base import BACKWARD, FORWARD, Asked, Hypothesis, always, tensors_of

WHOLE = 1e-3  # a coefficient as near as this to a whole number is one
MOST_PARTS = 8  # shards, or halves of shards: the square of it blocks are fitted


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Own blocks alone, then any block at another's place."""
    if asked.size < 2 or asked.case.problem.queries != asked.case.problem.seqlen:
        return
    for base, attention in asked.bases:
        for name in BACKWARD:
            if name in asked.wrong:
                yield from _of_gradient(asked, name, attention, base)
    if set(asked.wrong) & set(FORWARD):
        yield from _of_forward(asked)


def _of_gradient(asked: Asked, name: str, attention: Attention, base: str) -> Iterator[Hypothesis]:
    sums, place = contributions(asked, name, attention)
    yield from _named(asked, name, sums, base)
    yield from _stale(asked, name, sums, base)
    x = asked.shards(asked.returned[name]).flatten(1)
    size = asked.size
    for words, chosen in (("own", True), ("any", False)):
        if not chosen and size > MOST_PARTS:
            continue
        fitted = torch.zeros(size, size, size, dtype=torch.float64)  # [of rank, query rank, key rank]
        for rank in range(size):
            allowed = [(i, j) for i in range(size) for j in range(size) if not chosen or (i, j)[place] == rank]
            solved = _fit([sums[i][j] for i, j in allowed], x[rank])
            for (i, j), value in zip(allowed, solved.tolist(), strict=True):
                fitted[rank, i, j] = value
        expected = torch.zeros_like(fitted)
        visible = torch.tensor([[bool(sums[i][j].any()) for j in range(size)] for i in range(size)])
        for rank in range(size):
            own = [slice(None), slice(None)]
            own[place] = rank  # type: ignore[call-overload]
            expected[rank][tuple(own)] = visible[tuple(own)].double()
        whole = torch.where((fitted - fitted.round()).abs() < WHOLE, fitted.round(), fitted)
        off = (whole != expected).nonzero().tolist()
        if off:
            made = torch.einsum("rij,ijn->rn", whole, torch.stack([torch.stack(row) for row in sums]))
            prediction = asked.joined(made.view_as(asked.shards(asked.returned[name])))
            cause = f"{name} {_say(whole, expected, off)}{base}"
            yield Hypothesis(f"blocks ({words})", cause, {name: always(prediction)}, f"{len(off)} blocks", len(off))


def _named(asked: Asked, name: str, sums: list[list[Tensor]], base: str) -> Iterator[Hypothesis]:
    """The blocks of one hop alone, or all but those; hop h: the keys of rank r - h on rank r."""
    size, like = asked.size, asked.shards(asked.returned[name])
    for hop in range(size):
        what = "queries and keys of the same rank" if hop == 0 else f"the keys of rank r - {hop} on rank r"
        for only in (True, False):
            made = torch.zeros(size, sums[0][0].numel(), dtype=torch.float64)
            for rank in range(size):
                for source in range(size):
                    if ((rank - source) % size == hop) == only:
                        made[rank if name == "dq" else source] += sums[rank][source]
            cause = f"{name} has the blocks of {what} {'only' if only else 'left out'}{base}"
            whole = asked.joined(made.view_as(like))
            parameter = f"hop {hop}"
            yield Hypothesis(f"hops: {'one' if only else 'all but one'}", cause, {name: always(whole)}, parameter)


def _stale(asked: Asked, name: str, sums: list[list[Tensor]], base: str) -> Iterator[Hypothesis]:
    """The buffer of a hop's block still holds those of the hops before it; or the hops before it are lost."""
    size, like = asked.size, asked.shards(asked.returned[name])
    for ahead, direction in ((-1, "r - 1"), (1, "r + 1")):
        for word, keep in {
            "a buffer that is not cleared between hops: each hop adds the blocks of all hops before it too": "all",
            "a sum that the next hop's block overwrites and is then added to: the last block counts twice": "last",
        }.items():
            made = torch.zeros(size, sums[0][0].numel(), dtype=torch.float64)
            for rank in range(size):
                sources = [(rank + ahead * hop) % size for hop in range(size)]
                visited = [source for source in sources if sums[rank][source].any()]
                for place, source in enumerate(visited):
                    if keep == "all":
                        block = torch.stack([sums[rank][each] for each in visited[: place + 1]]).sum(0)
                    else:
                        block = sums[rank][source] * (2 if len(visited) > 1 else 1)
                    if name != "dq":
                        made[source] += block if keep == "all" else sums[rank][source]
                    elif keep == "all":
                        made[rank] += block
                    else:
                        made[rank] = block
            whole = asked.joined(made.view_as(like))
            cause = f"{name} is made in {word}{base}"
            yield Hypothesis(f"stale: {keep}", cause, {name: always(whole)}, f"keys of rank {direction} next")


def contributions(asked: Asked, name: str, attention: Attention) -> tuple[list[list[Tensor]], int]:
    """[query rank][key rank]: what the block adds to the shard of its own rank, (n,); which of both ranks that is."""
    heads, place = attention.heads, 0 if name == "dq" else 1
    found = []
    for mine in asked.tokens:
        row = []
        for keys in asked.keys:
            if name == "dv":
                weights = attention.backward_weights[:, :, mine][..., keys]
                block = attention.over_group("", weights.transpose(-1, -2) @ attention.dout[:, :, mine])
            else:
                ds = attention.ds[:, :, mine][..., keys]
                if name == "dq":
                    block = ds @ attention.k[:, heads][:, :, keys] * attention.scale
                else:
                    block = attention.over_group("", ds.transpose(-1, -2) @ attention.q[:, :, mine] * attention.scale)
            row.append(block.transpose(1, 2).flatten())
        found.append(row)
    return found, place


def _fit(columns: list[Tensor], x: Tensor) -> Tensor:
    """Coefficients of least squares; 0 of columns that are zero."""
    design = torch.stack(columns, 1)
    solved: Tensor = torch.linalg.lstsq(design, x[:, None], driver="gelsd").solution[:, 0]
    return torch.where(design.any(0), solved, torch.zeros_like(solved)).nan_to_num(nan=0.0)


MOST_SAID = 2


def _say(whole: Tensor, expected: Tensor, off: list[list[int]]) -> str:
    """In words, the first few."""
    said = []
    for rank, i, j in off[:MOST_SAID]:
        value, right = float(whole[rank, i, j]), float(expected[rank, i, j])
        times = "" if value == 1 else " twice" if value == 2 else f" {value:.4g} times"
        pair = f"the block of queries of rank {i} and keys of rank {j}"
        if right == 0:
            said.append(f"adds {pair} on rank {rank}{times}")
        else:
            said.append(f"misses {pair}" if value == 0 else f"counts {pair}{times}")
    more = len(off) - len(said)
    rest = f", and {more} more block{'s' if more > 1 else ''} wrongly" if more else ""
    return ", ".join(said) + rest


def _of_forward(asked: Asked) -> Iterator[Hypothesis]:
    """Coefficients of each rank's keys in exp(lse) and in out's numerator, for each query rank."""
    reference, size = asked.reference, asked.size
    lse, keys = reference.lse[..., None], asked.owners[1]
    weights = [reference.weights * (keys == rank) for rank in range(size)]
    sums = torch.stack([each.sum(-1, keepdim=True) for each in weights])  # (W, B, H, Sq, 1), of exp(lse_ref)
    tops = torch.stack([each @ reference.v[:, reference.heads] for each in weights])
    fitted = torch.zeros(size, size, dtype=torch.float64)
    for rank, mine in enumerate(asked.tokens):
        rows: list[Tensor] = []
        goal: list[Tensor] = []
        if "lse" in asked.returned:
            ratio = torch.exp(asked.returned["lse"].transpose(1, 2)[..., None] - lse)[:, :, mine]
            rows.append(sums[:, :, :, mine].flatten(1))
            goal.append(ratio.flatten())
            if "out" in asked.wrong:
                rows.append(tops[:, :, :, mine].flatten(1))
                goal.append((asked.returned["out"].transpose(1, 2)[:, :, mine] * ratio).flatten())
            solved = _fit(list(torch.cat(rows, 1)), torch.cat(goal))
        else:
            off = tops[:, :, :, mine] - asked.returned["out"].transpose(1, 2)[:, :, mine] * sums[:, :, :, mine]
            solved = _null(off.flatten(1), sums[:, :, :, mine].flatten(1).any(1))
        if not solved.isfinite().all():
            return
        fitted[rank] = solved
    visible = torch.stack([(sums[:, :, :, mine].flatten(1) > 0).any(1) for mine in asked.tokens]).double()
    whole = torch.where((fitted - fitted.round()).abs() < WHOLE, fitted.round(), fitted)
    off_pairs = ((whole != visible) & (visible > 0)).nonzero().tolist()
    if not off_pairs:
        return
    queries, owners = asked.owners
    counts = reference.counts * whole[queries][:, owners]
    changed = reference.but(counts=counts)
    if not changed.finite:
        return
    expected = visible[:, None] * torch.eye(size)[:, :, None]
    said = _say(whole[:, None] * torch.eye(size)[:, :, None], expected, [[i, i, j] for i, j in off_pairs])
    predicts = tensors_of(changed)
    yield Hypothesis("blocks (own)", f"the softmax {said}", predicts, f"{len(off_pairs)} blocks", len(off_pairs))


def _null(off: Tensor, present: Tensor) -> Tensor:
    """Coefficients, up to a common factor, whose sum of `off` (W, n) is nearest zero: most of them are 1."""
    solved = torch.zeros(len(off), dtype=torch.float64)
    use = present.nonzero().flatten()
    if len(use):
        _, _, right = torch.linalg.svd(off[use].T, full_matrices=False)
        least = right[-1]
        large = least[least.abs() > 1e-3 * least.abs().max()]
        solved[use] = least / large.median()
    return solved
