"""A dense attention in float64, each stage of which a hypothesis may replace. For small problems only.

Written from the definition in `accuracy.reference.float64`, head first: q, dout (B, H, Sq, D), k, v (B, Hk, S, D). How
often a query counts a key is a number: 1 where it sees it, 0 where it does not, 2 where it is counted twice:

    lse = ln sum_k c exp(s),  p = c exp(s - lse),  out = p v,  ds = p (dout v^T - delta), ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

FORWARD = ("out", "lse")
Stage = Callable[[Tensor], Tensor]
MOST_PAIRS, MOST_SCORES = 2**20, 2**18
"""Pairs (Sq, S) of the largest problem that is taken, and scores (B, H, Sq, S) of the largest on which all hypotheses
are tried: there one costs about 20 ms, and there are about 700."""

MADE_OF = {
    "_plain_scores": {"q", "k", "heads", "scale", "stages.scores"},
    "scores": {"_plain_scores", "softcap"},
    "slope_of_cap": {"_plain_scores", "softcap"},
    "_visible": {"scores", "counts"},
    "row_max": {"_visible"},
    "exact_lse": {"_visible", "row_max", "counts"},
    "lse": {"exact_lse", "stages.lse"},
    "weights": {"scores", "counts", "exact_lse", "stages.weights"},
    "out": {"weights", "v", "heads", "stages.out"},
    "backward_weights": {"scores", "counts", "saved", "lse", "stages.backward_weights"},
    "delta": {"dout", "saved", "out", "stages.delta"},
    "dp": {"dout", "v", "heads", "stages.dp"},
    "ds": {"backward_weights", "dp", "delta", "slope_of_cap", "stages.ds"},
}
"""What each stage before dq, dk and dv is computed from, in the order of the stages."""


@dataclass(frozen=True)
class Attention:
    """One attention and its gradients, computed when asked for.

    scale: of the scores; counts: (Sq, S), see above, or (B, H, Sq, S); heads: (H,), the key/value head of each query
    head; saved: out and lse that the backward is given, None: its own; stages: by name, what is done to a stage's
    result before it is used.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    scale: float
    counts: Tensor
    heads: Tensor
    softcap: float | None = None
    saved: tuple[Tensor, Tensor] | None = None
    stages: Mapping[str, Stage] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Scores."""
        return self.q.shape[0] * self.q.shape[1] * self.counts.shape[-2] * self.counts.shape[-1]

    def of_first_group(self, share: int) -> "Attention":
        """The first batch item's query heads of the first key/value head."""
        q, dout = (x[:1, :share] for x in (self.q, self.dout))
        k, v = (x[:1, :1] for x in (self.k, self.v))
        return self.but(q=q, k=k, v=v, dout=dout, heads=self.heads[:share])

    def but(self, **changes: object) -> "Attention":
        """The same with other inputs. What does not depend on them is not computed again."""
        found = replace(self, **changes)  # type: ignore[arg-type]
        before = self.stages
        changed = {*changes} | {f"stages.{name}" for name in before.keys() | found.stages.keys()
                                if before.get(name) is not found.stages.get(name)}  # fmt: skip
        for name, parts in MADE_OF.items():
            if parts & changed:
                changed.add(name)
            elif name in vars(self):
                vars(found)[name] = vars(self)[name]
        return found

    def _through(self, stage: str, x: Tensor) -> Tensor:
        return self.stages[stage](x) if stage in self.stages else x

    @cached_property
    def _plain_scores(self) -> Tensor:
        return self._through("scores", torch.einsum("bhqd,bhkd->bhqk", self.q, self.k[:, self.heads]) * self.scale)

    @cached_property
    def scores(self) -> Tensor:
        """(B, H, Sq, S), capped, of hidden pairs too."""
        plain, cap = self._plain_scores, self.softcap
        return plain if cap is None else torch.tanh(plain / cap) * cap

    @cached_property
    def slope_of_cap(self) -> Tensor | None:
        """(B, H, Sq, S), of the capped scores by the plain ones; None where nothing is capped."""
        return None if self.softcap is None else 1 - torch.tanh(self._plain_scores / self.softcap).square()

    @cached_property
    def _visible(self) -> Tensor:
        """Scores, -inf of hidden pairs."""
        return self.scores.masked_fill(self.counts == 0, -torch.inf)

    @cached_property
    def row_max(self) -> Tensor:
        """(B, H, Sq): largest score of the keys that a row sees; -inf where it sees none."""
        return self._visible.amax(-1)

    @cached_property
    def exact_lse(self) -> Tensor:
        """(B, H, Sq); -inf of a row that sees no key."""
        top = self.row_max.detach().clamp_min(-1e300)
        return (self.counts * torch.exp(self._visible - top[..., None])).sum(-1).log() + top

    @cached_property
    def lse(self) -> Tensor:
        """What the forward returns, and its backward is given."""
        return self._through("lse", self.exact_lse)

    @cached_property
    def weights(self) -> Tensor:
        """(B, H, Sq, S): what the forward multiplies with the values."""
        return self._through("weights", self._weights_for(self.exact_lse))

    def _weights_for(self, lse: Tensor) -> Tensor:
        hidden = self.counts == 0
        exponent = (self.scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).masked_fill(hidden, -torch.inf)
        return self.counts * torch.exp(exponent)

    @cached_property
    def out(self) -> Tensor:
        """(B, H, Sq, D)."""
        return self._through("out", self.weights @ self.v[:, self.heads])

    @cached_property
    def backward_weights(self) -> Tensor:
        """(B, H, Sq, S), from the lse that the backward is given."""
        return self._through("backward_weights", self._weights_for(self.saved[1] if self.saved else self.lse))

    @cached_property
    def delta(self) -> Tensor:
        """(B, H, Sq)."""
        return self._through("delta", (self.dout * (self.saved[0] if self.saved else self.out)).sum(-1))

    @cached_property
    def dp(self) -> Tensor:
        """(B, H, Sq, S)."""
        return self._through("dp", self.dout @ self.v[:, self.heads].transpose(-1, -2))

    @cached_property
    def ds(self) -> Tensor:
        """(B, H, Sq, S), of the scores before the scale."""
        slope = self.backward_weights * (self.dp - self.delta[..., None])
        return self._through("ds", slope if self.slope_of_cap is None else slope * self.slope_of_cap)

    @cached_property
    def dq(self) -> Tensor:
        """(B, H, Sq, D)."""
        return self._through("dq", self.ds @ self.k[:, self.heads] * self.scale)

    @cached_property
    def dk(self) -> Tensor:
        """(B, Hk, S, D)."""
        return self._through("dk", self.over_group("dk_heads", self.ds.transpose(-1, -2) @ self.q * self.scale))

    @cached_property
    def dv(self) -> Tensor:
        """(B, Hk, S, D)."""
        weights = self.backward_weights.transpose(-1, -2)
        return self._through("dv", self.over_group("dv_heads", weights @ self.dout))

    def over_group(self, stage: str, of_heads: Tensor) -> Tensor:
        """(B, H, S, D) of query heads to the sums (B, Hk, S, D) of their key/value heads."""
        of_heads = self._through(stage, of_heads)
        sums = torch.zeros(of_heads.shape[0], self.k.shape[1], *of_heads.shape[2:], dtype=of_heads.dtype)
        return sums.to(of_heads.device).index_add(1, self.heads, of_heads)

    def tensor(self, name: str) -> Tensor:
        """A result by name in token layout: (B, S, heads, D), lse (B, S, H)."""
        return getattr(self, name).transpose(1, 2)

    @property
    def finite(self) -> bool:
        """Whether every query counts a key."""
        return bool((self.counts != 0).any(-1).all())
