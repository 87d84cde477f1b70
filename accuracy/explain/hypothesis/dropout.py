"""Another dropout mask than the problem's: none, unscaled, shared by heads or sequences, or of local positions."""

from collections.abc import Iterator

from torch import Tensor

from accuracy.explain.hypothesis.base import Asked, Hypothesis, altered, setting


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """In the forward, in the backward, or in both."""
    kept = asked.reference.kept
    if kept is not None:
        for cause, other in _others(asked, kept):
            yield from altered(asked, "another dropout mask", cause, setting(kept=other))


def _others(asked: Asked, kept: Tensor) -> Iterator[tuple[str, Tensor | None]]:
    """kept: (B, H, Sq, S), 0 or 1 / (1 - rate)."""
    problem = asked.case.problem
    yield "nothing is dropped", None
    yield "kept weights are not scaled by 1 / (1 - rate)", (kept > 0).double()
    yield "kept weights are scaled by 1 / (1 - rate) twice", kept * kept
    yield "the weights that should be kept are dropped", (kept == 0).double() * kept.max()
    yield "all heads have the first one's dropout mask", kept[:, :1].expand_as(kept)
    group = problem.heads // problem.heads_kv
    if 1 < group < problem.heads:
        yield "heads that share keys have one dropout mask", kept[:, ::group].repeat_interleave(group, 1)
        again = kept[:, :group].repeat(1, problem.heads_kv, 1, 1)
        yield "the heads of every key head have the first one's dropout masks", again
    if problem.batch > 1:
        yield "all sequences have the first one's dropout mask", kept[:1].expand_as(kept)
    if problem.queries == problem.seqlen:
        yield "queries and keys are exchanged in the dropout mask", kept.transpose(-1, -2)
    if asked.size > 1:
        own = asked.tokens[0]
        rows, keys = (x.argsort() for x in (asked.tokens.flatten(), asked.keys.flatten()))
        ranks = len(asked.tokens)
        local = kept[:, :, own].repeat(1, 1, ranks, 1)[:, :, rows]
        yield "every rank has the first one's dropout mask (local queries)", local
        block = kept[:, :, own][..., asked.keys[0]].repeat(1, 1, ranks, ranks)[:, :, rows][..., keys]
        yield "every block has the first one's dropout mask (local queries and keys)", block
