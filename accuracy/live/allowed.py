"""How far may a healthy function be from the reference in a captured call? Limits out of running bounds.

Healthy is all that `accuracy.bound.policy.loosest` allows, and in a call under autocast or TF32 operands that are
rounded first. The limits have the chances of `accuracy.bound.limits`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from accuracy.bound.limits import DEPENDENT, independent, reach
from accuracy.bound.policy import Policy, cast, loosest
from accuracy.bound.running import Bound
from accuracy.core.recording import Facts


def policy_of(facts: Facts, dtype: str, size: int) -> Policy:
    """Of a function of anyone's on so many ranks, whose tensors, or whose autocast, are of a dtype."""
    policy = loosest(dtype, 1 if size == 1 else 2 * size)
    if facts.autocast or facts.tf32:
        return cast(policy, "tf32" if facts.tf32 and dtype == "float32" else dtype)
    return policy


@dataclass(frozen=True)
class Allowed:
    """certain: no rounding goes beyond; variance: of the error. By tensor, in token layout, lse (B, S, H)."""

    certain: dict[str, Tensor]
    variance: dict[str, Tensor]

    @classmethod
    def of(cls, found: Mapping[str, Bound]) -> "Allowed":
        """Out of bounds of all tensors."""
        certain = {name: in_tokens(name, each.certain) for name, each in found.items()}
        return cls(certain, {name: in_tokens(name, each.variance) for name, each in found.items()})

    def whole(self, name: str, part: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
        """The Frobenius norm of the error of a tensor; part: makes (W, ...) of it, to each of which belongs a limit."""
        variance, certain = part(self.variance[name]), part(self.certain[name])
        width = variance.shape[-1] if self.variance[name].dim() == 4 else 1
        factor = reach(variance[0].numel() / width / DEPENDENT, 1)
        return (variance.flatten(1).sum(1).sqrt() * factor).minimum(certain.flatten(1).norm(dim=1))

    def rows(self, name: str) -> Tensor:
        """The norm of the error of each row, a head of a token: (B, S, heads)."""
        variance, certain = self.variance[name], self.certain[name]
        width = variance.shape[-1] if variance.dim() == 4 else 1
        events = variance.numel() / width
        if variance.dim() == 4:
            variance, certain = variance.sum(-1), certain.norm(dim=-1)
        return (variance.sqrt() * reach(independent(width), events)).minimum(certain)


def in_tokens(name: str, x: Tensor) -> Tensor:
    """lse (B, H, S) as (B, S, H); the others as they are."""
    return x.transpose(1, 2) if name == "lse" else x
