"""Who sees whom in a captured call? As the reference takes it, and row by row as numbers added to the scores."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from accuracy.core.recording import Facts


@dataclass(frozen=True)
class Mask:
    """Of a whole call. queries, keys: S of all ranks; given: its mask tensor (1 or B, 1 or H, Sq, S), or None."""

    facts: Facts
    queries: int
    keys: int
    given: Tensor | None = None

    def block(self, item: int, head: int, first: int, last: int) -> Tensor:
        """What is added to the scores of rows first to last with every key: float64, -inf where a key is not seen."""
        added = torch.zeros(last - first, self.keys, dtype=torch.float64)
        added.masked_fill_(~self._seen(first, last), -math.inf)
        if self.given is None:
            return added
        own = self.given[item % self.given.shape[0], head % self.given.shape[1], first:last].cpu()
        return added.masked_fill(~own, -math.inf) if own.dtype == torch.bool else added + own.double()

    def for_reference(self, device: torch.device) -> dict[str, Any]:
        """Keyword arguments of `accuracy.reference.float64.attention`."""
        facts = self.facts
        left, right = facts.window or (None, None)
        one_sided = facts.window is not None and right != (0 if facts.causal else left)
        blind = facts.causal and not facts.top_left and self.queries > self.keys
        crossed = facts.window is not None and self.queries != self.keys
        if facts.documents_k or one_sided or blind or crossed or (facts.documents and self.queries != self.keys):
            seen = self._seen(0, self.queries)[None, None].to(device)
            if self.given is None:
                return {"causal": False, "mask": seen}
            given = self.given
            hidden = given & seen if given.dtype == torch.bool else given.double().masked_fill(~seen, -math.inf)
            return {"causal": False, "mask": hidden}
        return {"causal": facts.causal, "top_left": facts.top_left, "window": left, "documents": facts.documents,
                "mask": self.given}  # fmt: skip

    def _seen(self, first: int, last: int) -> Tensor:
        """(rows, S), of the mask that words say."""
        facts, row, key = self.facts, torch.arange(first, last)[:, None], torch.arange(self.keys)[None]
        shift: int | Tensor = 0 if facts.top_left else self.keys - self.queries
        seen = torch.ones(last - first, self.keys, dtype=torch.bool)
        if facts.documents:
            lengths = torch.tensor([facts.documents, facts.documents_k or facts.documents])
            of_row, of_key = (torch.repeat_interleave(torch.arange(lengths.shape[1]), each) for each in lengths)
            mine = of_row[first:last]
            seen &= mine[:, None] == of_key[None]
            ends = lengths.cumsum(1)
            shift = (ends[1] - ends[0])[mine][:, None]  # the last query of a document sees its last key
        distance = row + shift - key
        if facts.causal:
            seen &= distance >= 0
        left, right = facts.window or (None, None)
        if left is not None:
            seen &= distance <= left
        if right is not None:
            seen &= distance >= -right
        return seen


def outweighs(mask: Tensor) -> Tensor:
    """Return where what a mask adds leaves nothing of a score: True hides the key."""
    return mask <= torch.finfo(mask.dtype).min / 2


def in_words(facts: Facts, mask: Tensor) -> tuple[Facts, Tensor | None]:
    """A mask tensor that says no more than `causal` and `window` do, as these, and no tensor; any other as it is, bool
    where nothing but hiding is added. Rows that see no key are what words cannot say, and a row that stands for all."""
    hidden = mask.logical_not() if facts.mask == "seen" else outweighs(mask)
    plain = facts.mask == "seen" or bool(mask.masked_fill(hidden, 0).eq(0).all())
    if not plain or bool(hidden.all(-1).any()) or facts.causal:
        return facts, mask
    seen, facts = ~hidden, replace(facts, mask="seen")
    queries, keys = seen.shape[-2:]
    if (queries, keys) != (facts.shapes["q"][1], facts.shapes["k"][1]):
        return facts, seen
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    first = seen[0, 0]
    left, right = (int((sign * distance)[first].max()) for sign in (1, -1))
    if not torch.equal(seen, ((distance <= left) & (distance >= -right)).expand_as(seen)):
        return facts, seen
    far, ahead = left >= int(distance.max()), right >= int((-distance).max())
    causal = right == 0 and queries > 1
    window = None if far and (ahead or causal) else (None if far else left, None if ahead else right)
    return replace(facts, mask="", causal=causal, top_left=False, window=window), None
