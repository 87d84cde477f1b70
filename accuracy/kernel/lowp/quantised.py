"""Attention in FP8, INT8, MXFP8 or NVFP4 by emulation, every cast, scale and accumulator a knob; CPU and CUDA.

`policy` names a `Policy` of `accuracy.core.quantisation`; every field of it is a knob too, and null leaves it as the
policy has it. Without a policy nothing is rounded but the results, and the products' sums in float32.
"""

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Annotated, Any, get_type_hints

from torch import Tensor

from accuracy.core.case import Problem
from accuracy.core.dtype import FromZero, OneOf, Whole
from accuracy.core.quantisation import NOT, POLICIES, Policy, policy_of
from accuracy.kernel.base import ALL_DTYPES, FEATURES, Abilities, Gradients, How, Kernel
from accuracy.kernel.lowp import attention, tensor_core


@dataclass(frozen=True)
class Quantised(Kernel):
    """policy: by name; key_chunk: keys of a tile of the online softmax; backward_chunk: of the backward, 0: as many."""

    policy: Annotated[str, OneOf(*POLICIES)] = NOT
    key_chunk: Whole = 128
    backward_chunk: FromZero = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a combination that means nothing."""
        self.resolved()

    def resolved(self) -> Policy:
        """The policy with its changes."""
        names = {each.name for each in fields(Policy)}
        return policy_of(self.policy, **{name: value for name, value in vars(self).items() if name in names})

    def abilities(self, device: str) -> Abilities:
        """Everything."""
        return Abilities(dtypes=ALL_DTYPES, partial_dtypes=ALL_DTYPES, features=FEATURES)

    def scores_at_once(self, problem: Problem, device: str) -> int:
        """Count the scores of one tile of keys with their casts, the cast operands, and products that are cut."""
        keys = min(problem.seqlen, max(self.key_chunk, self.backward_chunk))
        width = max(problem.head_dim, problem.value_dim)
        operands = (problem.queries + problem.seqlen) * width
        products = tensor_core.AT_ONCE if self.resolved().cut_products else 0
        return 2 * problem.batch * problem.heads * (problem.queries * keys + operands) + products

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        return attention.forward(attention.Block(self.resolved(), q, k, v, how, self.key_chunk))

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        block = attention.Block(self.resolved(), q, k, v, how, self.backward_chunk or self.key_chunk)
        return attention.backward(block, dout, out, lse)


_KINDS: dict[str, Any] = get_type_hints(Policy, include_extras=True)
KERNEL = make_dataclass(
    "KERNEL",
    [(name, kind | None, field(default=None)) for name, kind in _KINDS.items()],
    bases=(Quantised,),
    frozen=True,
    namespace={"__module__": __name__, "__doc__": Quantised.__doc__},
)
