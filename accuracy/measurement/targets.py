"""What a variant is compared with: the reference, the single-device kernel and the floor, made once and shared by all
cases.

All tensors here are in token layout: (B, S, heads, D), and (B, S, H) for lse and delta, so that one sharding cuts
them all along dimension 1. S is the tensor's own number of tokens, of queries or of keys.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from accuracy.core import quantisation
from accuracy.core.case import Case, Part, Problem
from accuracy.core.dtype import tensor_dtype
from accuracy.core.masks import whole_blocks
from accuracy.inputs.drawing import Inputs
from accuracy.kernel.base import kernel_of
from accuracy.kernel.block import calls
from accuracy.measurement import compute_device
from accuracy.measurement.distance import Target, distance
from accuracy.measurement.metrics import Sums, rounding_sums
from accuracy.reference.float64 import Reference
from accuracy.results.table import ALL_TENSORS
from accuracy.runtime.rounding import quantise, round_to
from accuracy.runtime.sharding import cut, sharding_of
from accuracy.simulate.program import build_kernel, scores_of
from accuracy.variant.base import schedule_of
from accuracy.world.base import Results

T = TypeVar("T")
Named = dict[str, Tensor]
KEPT_ELEMENTS = 2**24  # of a target that is kept for the next case: 128 MiB


def in_token_layout(results: Results, dout: Tensor) -> Named:
    """Name a schedule's results out, lse, dq, dk, dv; lse (..., H, S) -> (..., S, H); delta from dout and out.

    A missing result stays missing. delta is what the variant's stored out makes it, computed in float64: an out that
    is right gives a right delta.
    """
    named = {name: x for name, x in zip(ALL_TENSORS, results, strict=False) if x is not None}
    if "lse" in named:
        named["lse"] = named["lse"].transpose(-1, -2)
    return named | {"delta": (dout.double() * named["out"].double()).sum(-1)}


@dataclass
class Targets:
    """For one set of inputs in one dtype. inputs: where numbers are computed, as all that is compared with;
    given: the same on the device of the kernels."""

    inputs: Inputs
    given: Inputs
    reference: Named
    rounded: Named  # the reference, merely rounded to each tensor's dtype
    unquantised: Named = field(default_factory=dict)  # the reference of the inputs before they were rounded to 8 bits
    single_devices: dict[Part, Named] = field(default_factory=dict)
    _targets: dict[object, Target] = field(default_factory=dict)
    _world_size: int = 0  # of the targets
    memory: dict[object, Any] = field(default_factory=dict)  # see `once`

    @classmethod
    def of(
        cls, inputs: Inputs, reference: Reference, dtype: str, sinks: Sequence[float] = (),
        unquantised: Reference | None = None, device: str | None = None,
    ) -> "Targets":  # fmt: skip
        """The floor of delta and dsink is that of a rounded out: no implementation that stores out in `dtype` can have
        less. sinks: the logits, one a head; unquantised: of the inputs before they were rounded to 8 bits; device: of
        the kernels, where that is not the inputs'."""
        results = _results(reference)
        rounded = [
            None if x is None else round_to(x, getattr(torch, tensor_dtype(name, dtype)))
            for name, x in zip(ALL_TENSORS, results, strict=False)
        ]
        exact = _named(reference, inputs)
        floor = in_token_layout(tuple(rounded), inputs.dout)
        if sinks:
            share = (torch.tensor(sinks, dtype=torch.float64, device=exact["lse"].device) - exact["lse"]).exp()
            floor["dsink"] = -(share * floor["delta"]).sum((0, 1))[None, None]
        given = inputs if device is None else inputs.on(device)
        return cls(inputs, given, exact, floor, {} if unquantised is None else _named(unquantised, inputs))

    def single_device(self, case: Case) -> Named:
        """Run the case's kernel once on the whole sequence, in the case's dtype, and return its results."""
        if case.kernel not in self.single_devices:
            kernel = build_kernel(case)
            q, k, v, dout = self.given.tensors
            problem, dtype = case.problem, q.dtype
            scores = scores_of(case)
            blocks = whole_blocks(problem.visibility, problem.query_offset, problem.queries, problem.seqlen)
            out, lse = calls.forward_rows(
                lambda block: calls.forward(kernel, scores, block, q, k, v, dtype), blocks, q, k
            )
            sinks = problem.sink_logits
            out, lse = calls.apply_sinks(out, lse, sinks) if sinks else (out, lse)
            dsink = calls.sink_gradient(dout, out, lse, sinks) if sinks else None
            gradients = calls.backward_rows(
                lambda block: calls.backward(kernel, scores, block, dout, q, k, v, out, lse, dtype), blocks, q, k
            )
            dbias = None if scores.dbias is None else scores.dbias.transpose(1, 2).to(dtype)
            if "dbias" not in kernel_of(case.kernel).abilities(case.device).features:
                dbias = None
            results: Results = (out, lse, *gradients, dsink, dbias)
            (results,) = compute_device.move_results([results], self.inputs.q.device.type)
            self.single_devices[case.kernel] = in_token_layout(results, self.inputs.dout)
        return self.single_devices[case.kernel]

    def once(self, key: object, make: Callable[[], T]) -> T:
        """Return what is made for a key at its first use, and kept while inputs and dtype stay."""
        if key not in self.memory:
            self.memory[key] = make()
        found: T = self.memory[key]
        return found

    def natural(self, problem: Problem) -> dict[str, float]:
        """Of each tensor, the root mean square of its elements where nothing cancels, for references that are zero.

        A gradient of a score is at most |dout| |v| of a row; an lse is a logarithm, whose error is relative as it is.
        """

        def sizes() -> dict[str, float]:
            q, k, v, dout = (float(x.double().square().mean().sqrt()) for x in self.inputs.tensors)
            delta = problem.value_dim * dout * v
            slope = problem.softmax_scale * delta
            found = {"out": v, "lse": 1.0, "dq": slope * k, "dk": slope * q, "dv": dout, "delta": delta}
            return found | dict.fromkeys(("dsink", "dbias"), delta * math.sqrt(problem.batch * problem.queries))

        return self.once("natural", sizes)

    def target(self, case: Case, tensor: str, of: str = "reference") -> Target:
        """Return what a tensor is compared with, in the case's shards. of: reference; single_device, the kernel run
        once; unquantised, the reference of the inputs before they were rounded to 8 bits."""
        if of == "single_device":
            return self._target((case.kernel, tensor), case, tensor, self.single_device(case)[tensor])
        return self._target((of, tensor), case, tensor, vars(self)[of][tensor])

    def dout(self, case: Case) -> Tensor:
        """Return the incoming gradient in the case's shards, float64."""
        return self._target("dout", case, "dout", self.inputs.dout).values

    def single_device_sums(self, case: Case, tensor: str) -> Sums:
        """Return the single-device kernel's own error on each rank's tokens."""
        return self._error(case, tensor, case.kernel, lambda: self.target(case, tensor, "single_device").values)

    def floor_sums(self, case: Case, tensor: str, dtype: str) -> Sums:
        """Return the least error that any implementation can have on each rank's tokens; of results that a kernel
        stores in 8 bits, with their scales, that of these. dtype: in which the tensor is stored, the case's for it or,
        of lse, a coarser one."""
        policy = quantisation.policy_in(case.kernel.name, case.kernel.options_text)
        of_results = () if policy is None else policy.formats  # in fewer bits than the case's dtype has
        if schedule_of(case.variant.forward).merges or ("out" if tensor == "delta" else tensor) not in of_results:
            policy = None

        def stored() -> Tensor:
            if policy is not None:
                return shards_of_tensor(case, tensor, self._quantised(case, tensor, policy))
            if dtype != tensor_dtype(tensor, case.dtype):
                return round_to(self.target(case, tensor).values, getattr(torch, dtype)).double()
            return shards_of_tensor(case, tensor, self.rounded[tensor])

        exact = policy is None and dtype == tensor_dtype(tensor, case.dtype) and case.dtype == "float64"
        return self._error(case, tensor, ("floor", dtype, policy), None if exact else stored)

    def _quantised(self, case: Case, tensor: str, policy: quantisation.Policy) -> Tensor:
        """Return the reference rounded to the 8 bits in which a kernel stores it, then to the case's dtype."""
        if tensor == "delta":
            return (self.inputs.dout.double() * self._quantised(case, "out", policy)).sum(-1)
        place = policy.of_rows if tensor in ("out", "dq") else policy
        rows = self.reference[tensor].transpose(1, 2)
        rounded = quantise(rows, getattr(policy, tensor), place).transpose(1, 2)
        return round_to(rounded, getattr(torch, tensor_dtype(tensor, case.dtype))).double()

    def _target(self, what: object, case: Case, tensor: str, tokens: Tensor) -> Target:
        """Kept while neighbours in the grid have the same world size, unless it is large."""
        key = what, *_layout(case)
        if self._world_size != case.world_size:
            self._targets.clear()
            self._world_size = case.world_size
        if key in self._targets:
            return self._targets[key]
        made = Target(shards_of_tensor(case, tensor, tokens).to(torch.float64, copy=True))
        if made.values.numel() <= KEPT_ELEMENTS:
            self._targets[key] = made
        return made

    def _error(self, case: Case, tensor: str, what: object, shards: Callable[[], Tensor] | None) -> Sums:
        """Return the error of shards; without them, what rounding to float64 is expected to cost."""

        def error() -> Sums:
            reference = self.target(case, tensor)
            return rounding_sums(reference.values) if shards is None else distance(shards(), reference).sums

        return self.once((*_layout(case), tensor, what), error)


def _results(reference: Reference) -> Results:
    dsink = reference.dsink if reference.dsink.numel() else None
    dbias = reference.dbias.transpose(1, 2) if reference.dbias.numel() else None
    return (reference.out, reference.lse, reference.dq, reference.dk, reference.dv, dsink, dbias)


def _named(reference: Reference, inputs: Inputs) -> Named:
    return in_token_layout(_results(reference), inputs.dout) | {"delta": reference.delta.transpose(-1, -2)}


def shards_of_tensor(case: Case, tensor: str, tokens: Tensor) -> Tensor:
    """Return a tensor of all tokens as the ranks have it, (W, B, S/W, ...); every rank has all of dsink."""
    return tokens.expand(case.world_size, *tokens.shape) if tensor == "dsink" else cut(tokens, *_layout(case))


def _layout(case: Case) -> tuple[str, int]:
    """How shards are cut: a single rank's are the same in every sharding."""
    return "contiguous" if case.world_size == 1 else sharding_of(case), case.world_size
