"""What a hypothesis is, and what every family of them is asked."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from torch import Tensor

from accuracy.core.case import Case
from accuracy.explain.hypothesis.attention import FORWARD, MOST_SCORES, Attention, Stage
from accuracy.runtime.sharding import cut, join, sharding_of, token_map

BACKWARD = ("dq", "dk", "dv")
Predicts = Mapping[str, Tensor | Callable[[], Tensor]]


@dataclass(frozen=True)
class Hypothesis:
    """An idea of what went wrong, and what the tensors would be then.

    name: of the idea, the same whatever its parameter; cause: a clause that names it; freedom: how many numbers were
    fitted to the tensor; predicts: by tensor, its values in token layout, or what computes them.
    """

    name: str
    cause: str
    predicts: Predicts
    parameter: str = ""
    freedom: int = 0

    def prediction(self, name: str) -> Tensor:
        """The values of a tensor that it predicts."""
        found = self.predicts[name]
        return found() if callable(found) else found


@dataclass(frozen=True)
class Asked:
    """A case whose results are to be explained.

    reference: what is right; returned: by name, what the ranks returned, float64, token layout, finite tensors only;
    wrong: those that are asked about; forward_wrong: whether out or lse is beyond rounding; expected: of each tensor,
    the relative error that rounding explains.
    """

    case: Case
    reference: Attention
    returned: Mapping[str, Tensor]
    wrong: tuple[str, ...]
    forward_wrong: bool
    expected: Mapping[str, float]

    @property
    def is_part(self) -> bool:
        """Whether the problem is so large that the reference is that of one group of heads."""
        problem, reference = self.case.problem, self.reference
        return reference.q.shape[:2] != (problem.batch, problem.heads) or reference.count > MOST_SCORES

    @property
    def size(self) -> int:
        """Ranks."""
        return self.case.world_size

    @cached_property
    def tokens(self) -> Tensor:
        """Of the queries of each rank: (W, Sq/W)."""
        return token_map(sharding_of(self.case), self.case.problem.queries, self.size)

    @cached_property
    def keys(self) -> Tensor:
        """Of the keys of each rank: (W, S/W)."""
        return token_map(sharding_of(self.case), self.case.problem.seqlen, self.size)

    @cached_property
    def owners(self) -> tuple[Tensor, Tensor]:
        """The rank of every query (Sq,) and of every key (S,)."""
        queries, keys = (tokens.flatten().argsort() // tokens.shape[1] for tokens in (self.tokens, self.keys))
        return queries, keys

    @cached_property
    def bases(self) -> list[tuple[str, Attention]]:
        """What gradients may be made of: the right out and lse, and where one is wrong, those that were returned."""
        right = self.reference.but(saved=(self.reference.out, self.reference.lse))
        if not self.forward_wrong or "out" not in self.returned:
            return [("", right)]
        out = self.returned["out"].transpose(1, 2)
        lse = self.returned["lse"].transpose(1, 2) if "lse" in self.returned else self.reference.lse
        return [("", right), (" (with the returned out and lse)", right.but(saved=(out, lse)))]

    def shards(self, x: Tensor) -> Tensor:
        """(W, B, S/W, ...) of (B, S, ...)."""
        return cut(x, sharding_of(self.case), self.size)

    def joined(self, shards: Tensor) -> Tensor:
        """The inverse of `shards`."""
        return join(shards, sharding_of(self.case))

    def on_ranks(self, name: str, made: Tensor) -> Predicts:
        """A tensor of ranks' flat shards (W, n), as a prediction of a returned one."""
        return {name: self.joined(made.view_as(self.shards(self.returned[name])))}

    def on_shards(self, move: Stage) -> Stage:
        """A move of stacked shards (W, B, S/W, heads, D) as one of a tensor (B, S, heads, D)."""
        return lambda x: self.joined(move(self.shards(x)))

    def moved(self, move: Stage, *names: str) -> dict[str, Tensor]:
        """Inputs of these names moved, or rounded."""
        return {name: move(getattr(self.reference, name)) for name in names}

    def gradients(self) -> Iterator[tuple[str, str, Attention]]:
        """Each wrong gradient with each base: (name, base, attention)."""
        for word, base in self.bases:
            yield from ((name, word, base) for name in BACKWARD if name in self.wrong)

    def finals(self) -> Iterator[tuple[str, str, Tensor]]:
        """Each tensor as it would be if nothing but its last step were wrong: (name, base, tensor)."""
        for word, base in self.bases:
            yield from ((name, word, base.tensor(name)) for name in self.wrong if not word or name in BACKWARD)


def head_first(move: Stage) -> Stage:
    """A move of a tensor in token layout as one of a head-first tensor."""
    return lambda x: move(x.transpose(1, 2)).transpose(1, 2)


def altered(
    asked: Asked, name: str, cause: str, inputs: Mapping[str, object], parameter: str = "", freedom: int = 0
) -> Iterator[Hypothesis]:
    """An attention with other inputs or stages, in the forward, in the backward, or in both."""
    changed = asked.reference.but(**inputs)
    if not changed.finite:
        return
    predicts = tensors_of(changed)
    if asked.forward_wrong:
        yield Hypothesis(name, cause, predicts, parameter, freedom)
    if not set(asked.wrong) & set(BACKWARD):
        return
    for word, base in asked.bases:
        gradients = gradients_of(base.but(**inputs))
        yield Hypothesis(f"{name} (backward)", f"{cause} in the backward{word}", gradients, parameter, freedom)
    if not asked.forward_wrong:
        again = f"{cause} in a backward that computes out and lse anew"
        yield Hypothesis(f"{name} (recomputed)", again, _gradients(predicts), parameter, freedom)


def tensors_of(attention: Attention) -> Predicts:
    """All of an attention's results."""
    return {name: partial(attention.tensor, name) for name in (*FORWARD, *BACKWARD)}


def gradients_of(attention: Attention) -> Predicts:
    """Those of its backward alone."""
    return _gradients(tensors_of(attention))


def _gradients(predicts: Predicts) -> Predicts:
    return {name: predicts[name] for name in BACKWARD}
