"""What a variant is compared with: the truth, the one-shot kernel and the floor, made once and shared by all cases.

All tensors here are in token layout: (B, S, heads, D), and (B, S, H) for lse and delta, so that one sharding cuts
them all along dimension 1. S is the tensor's own number of tokens, of queries or of keys.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from accuracy import condition
from accuracy.case import Case, Part, Problem
from accuracy.distance import Target, distance
from accuracy.dtype import tensor_dtype
from accuracy.inputs.base import Inputs
from accuracy.kernel.block import calls
from accuracy.kernel.block.calls import Scores
from accuracy.masks import whole_blocks
from accuracy.metrics import Sums, rounding_sums
from accuracy.program import build_kernel
from accuracy.reference.float64 import Truth
from accuracy.room import KEPT_ELEMENTS, Room
from accuracy.rounding import round_to
from accuracy.sharding import cut
from accuracy.table import TENSORS
from accuracy.world.base import Results

Named = dict[str, Tensor]


def in_token_layout(results: Results, dout: Tensor) -> Named:
    """Name a schedule's results out, lse, dq, dk, dv; lse (..., H, S) -> (..., S, H); delta from dout and out.

    A missing result stays missing. delta is what the variant's stored out makes it, computed in float64: an out that
    is right gives a right delta.
    """
    named = {name: x for name, x in zip(TENSORS, results, strict=False) if x is not None}
    if "lse" in named:
        named["lse"] = named["lse"].transpose(-1, -2)
    return named | {"delta": (dout.double() * named["out"].double()).sum(-1)}


@dataclass
class Yardsticks:
    """For one set of inputs in one dtype on one device."""

    inputs: Inputs
    truth: Named
    rounded: Named  # the truth, merely rounded to each tensor's dtype
    one_shots: dict[Part, Named] = field(default_factory=dict)
    _sums: dict[tuple[object, ...], Sums] = field(default_factory=dict)
    _targets: dict[object, Target] = field(default_factory=dict)
    _world_size: int = 0  # of the targets
    room: Room = field(default_factory=Room)
    _magnitudes: condition.Magnitudes | None = None

    @classmethod
    def of(cls, inputs: Inputs, truth: Truth, dtype: str) -> "Yardsticks":
        """delta's floor is that of a rounded out: no implementation that stores out in `dtype` can have less."""
        results = (truth.out, truth.lse, truth.dq, truth.dk, truth.dv)
        rounded = [
            round_to(x, getattr(torch, tensor_dtype(name, dtype))) for name, x in zip(TENSORS, results, strict=False)
        ]
        exact = in_token_layout(results, inputs.dout) | {"delta": truth.delta.transpose(-1, -2)}
        return cls(inputs, exact, in_token_layout(tuple(rounded), inputs.dout))

    def one_shot(self, case: Case) -> Named:
        """The case's kernel on the whole sequence, in the case's dtype."""
        if case.kernel not in self.one_shots:
            kernel = build_kernel(case)
            q, k, v, dout = self.inputs.tensors
            problem, dtype = case.problem, self.inputs.q.dtype
            scores = Scores(problem.softmax_scale, problem.softcap)
            blocks = whole_blocks(problem.visibility, problem.ahead, problem.queries, problem.seqlen)
            out, lse = calls.forward_rows(
                lambda block: calls.forward(kernel, scores, block, q, k, v, dtype), blocks, q, k
            )
            gradients = calls.backward_rows(
                lambda block: calls.backward(kernel, scores, block, dout, q, k, v, out, lse, dtype), blocks, q, k
            )
            self.one_shots[case.kernel] = in_token_layout((out, lse, *gradients), dout)
        return self.one_shots[case.kernel]

    def magnitudes(self, problem: Problem) -> condition.Magnitudes:
        """What condition numbers are made of; problem: that of the inputs."""
        if self._magnitudes is None:
            self._magnitudes = condition.magnitudes(problem, self.inputs, self.truth)
        return self._magnitudes

    def truth_target(self, case: Case, tensor: str) -> Target:
        """The truth in the case's shards."""
        return self._target(("truth", tensor), case, lambda: self.truth[tensor])

    def one_shot_target(self, case: Case, tensor: str) -> Target:
        """The one-shot kernel's result in the case's shards."""
        return self._target((case.kernel, tensor), case, lambda: self.one_shot(case)[tensor])

    def dout(self, case: Case) -> Tensor:
        """The incoming gradient in the case's shards, float64."""
        return self._target("dout", case, lambda: self.inputs.dout).values

    def one_shot_sums(self, case: Case, tensor: str) -> Sums:
        """The one-shot kernel's own error on each rank's tokens."""
        return self._kept_sums(
            case, tensor, case.kernel, lambda: self._error(case, tensor, self.one_shot_target(case, tensor).values)
        )

    def floor_sums(self, case: Case, tensor: str) -> Sums:
        """The least error that any implementation can have on each rank's tokens."""

        def made() -> Sums:
            if case.dtype == "float64":
                return rounding_sums(self.truth_target(case, tensor).values)
            return self._error(case, tensor, cut(self.rounded[tensor], *_layout(case)))

        return self._kept_sums(case, tensor, "floor", made)

    def _target(self, what: object, case: Case, whole: Callable[[], Tensor]) -> Target:
        """Kept while neighbours in the grid have the same world size, unless it is large."""
        key = what, *_layout(case)
        if self._world_size != case.world_size:
            self._targets.clear()
            self._world_size = case.world_size
        if key in self._targets:
            return self._targets[key]
        shards = cut(whole(), *_layout(case))
        made = Target(self.room.like(shards, key[:2]).copy_(shards))  # where that of the last world size was
        if shards.numel() <= KEPT_ELEMENTS:
            self._targets[key] = made
        return made

    def _kept_sums(self, case: Case, tensor: str, what: object, make: Callable[[], Sums]) -> Sums:
        key = (*_layout(case), tensor, what)
        if key not in self._sums:
            self._sums[key] = make()
        return self._sums[key]

    def _error(self, case: Case, tensor: str, shards: Tensor) -> Sums:
        return distance(shards, self.truth_target(case, tensor), room=self.room).sums


def _layout(case: Case) -> tuple[str, int]:
    """How shards are cut: a single rank's are the same in every sharding."""
    return "contiguous" if case.world_size == 1 else case.variant.sharding, case.world_size
