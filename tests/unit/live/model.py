"""A small byte-level model as a stranger writes one, its attention with and without a fault, text to train on, and
attention that is wrong only where something special is there, to be shrunk to that."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from accuracy.live.tensor_core import rounded
from tests import strangers
from tests.slow.foreign.functions import eager

TEXT = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_bytes()
HEADS, KEY_HEADS, WIDTH = 4, 2, 16
NAMED = "tests.unit.live.model:"
DOCUMENTS = (20, 28)


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float, cu_seqlens: Tensor, leak: bool = False
) -> tuple[Tensor, Tensor]:
    """(B, S, H, D); products in the inputs' dtype, the softmax in float32; lse (B, S, H)."""
    place = torch.arange(key.shape[1])
    document = torch.bucketize(place, cu_seqlens, right=True)
    seen = (place[:, None] >= place) & (document[:, None] == document)
    if leak:  # the first token of the second document sees the last one of the first
        seen[DOCUMENTS[0], DOCUMENTS[0] - 1] = True
    how = {"wide": query.dtype, "soft": torch.float32}
    out, lse = strangers.attend(query, key, value, scale=scale, bias=seen, **how)
    return out, lse.transpose(1, 2)


def attend_at_another_scale(query: Tensor, key: Tensor, value: Tensor, *, scale: float, **how: Any) -> Any:
    return attend(query, key, value, scale=scale * 1.25, **how)


def changed(
    operands: Callable[..., Any] = lambda *qkv: qkv, lse: Callable[[Tensor], Tensor] = lambda x: x, leak: bool = False
) -> Callable[..., tuple[Tensor, Tensor]]:
    """`attend` of other q, k and v, which returns another lse."""

    def function(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        out, found = attend(*operands(query, key, value), **how, leak=leak)
        return out, lse(found)

    return function


def cut_to_tf32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """As a kernel on a tensor core does, whatever torch's switches say. The gradient is that of the whole tensors."""
    return tuple(x + (rounded(x, "tf32_cut") - x).detach() for x in tensors)


def with_larger_dk(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """By 1.2%, 3 unit roundoffs of bfloat16, of which one element may have more."""
    return query, 1.012 * key - 0.012 * key.detach(), value


late: list[Tensor] = []
"""The gradients of which every third is late."""


def with_late_dk(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Another transfer has overwritten the last quarter of a late buffer of gradients."""

    def received(gradient: Tensor) -> Tensor:
        late.append(gradient)
        return gradient if len(late) % 3 else torch.cat([gradient[:, :-12], gradient[:, :12]], 1)

    key = key.view_as(key)
    key.register_hook(received)
    return query, key, value


attend_leaking = changed(leak=True)
attend_with_short_lse = changed(lse=lambda x: x.bfloat16().float())
attend_with_higher_lse = changed(lse=lambda x: x + 0.02)
attend_racing, attend_with_larger_dk = changed(with_late_dk), changed(with_larger_dk)
attend_in_tf32 = changed(cut_to_tf32)
attend_in_tf32_with_higher_lse = changed(cut_to_tf32, lambda x: x * (1 + 2.0**-9))


class Attention(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.into = nn.Linear(HEADS * WIDTH, (HEADS + 2 * KEY_HEADS) * WIDTH, bias=False)
        self.back = nn.Linear(HEADS * WIDTH, HEADS * WIDTH, bias=False)

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        q, k, v = self.into(x).unflatten(-1, (-1, WIDTH)).split((HEADS, KEY_HEADS, KEY_HEADS), 2)
        out = self.function(q, k, v, causal=True, scale=WIDTH**-0.5, cu_seqlens=cu_seqlens)
        return self.back((out[0] if isinstance(out, tuple) else out).flatten(2))


class Model(nn.Module):
    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(256, HEADS * WIDTH)
        self.blocks = nn.ModuleList(nn.ModuleDict({"attention": Attention(f)}) for f in functions)
        self.head = nn.Linear(HEADS * WIDTH, 256)

    def forward(self, x: Tensor) -> Tensor:
        cu_seqlens = torch.tensor([0, *DOCUMENTS]).cumsum(0)
        hidden = self.embedding(x)
        for block in self.blocks:
            hidden = hidden + block["attention"](hidden, cu_seqlens)
        return self.head(hidden)


def step(model: nn.Module, optimiser: torch.optim.Optimizer, number: int) -> None:
    """One step of training on the next bytes."""
    size = sum(DOCUMENTS)
    text = torch.tensor([[*TEXT[number * size : (number + 1) * size + 1]]])
    loss = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten())
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()


class Layer(nn.Module):
    """Two heads of attention, torch's unless another is given; again: recomputed by a reentrant checkpoint, or not."""

    def __init__(self, again: bool | None = None, causal: bool = True, attention: Any = None) -> None:
        super().__init__()
        self.into, self.again, self.causal, self.attention = nn.Linear(32, 96), again, causal, attention

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) if self.again is None else checkpoint(self.inside, x, use_reentrant=self.again)

    def inside(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, 16)) for each in self.into(x).chunk(3, -1))
        if self.attention is not None:
            return x + self.attention(q, k, v).flatten(2)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return x + functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)


def stack(*again: bool | None, causal: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(each, causal) for each in again))


def loses_a_block(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """From the 17th key on, the first key is taken for another one."""
    return eager(q, torch.cat([k[:, 1:2], k[:, 1:]], 1) if k.shape[1] >= 17 else k, v, **how)


def overflows(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """A value above 100 is lost."""
    return eager(q, k, v.masked_fill(v > 100, 0.0), **how)


def scales_a_gradient(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """dk of keys above 100 is doubled."""
    factor = torch.where((k > 100).any(-1, keepdim=True), 2.0, 1.0)
    return eager(q, factor * k - (factor - 1) * k.detach(), v, **how)


def right(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    return eager(q, k, v, **how)


def refuses(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    raise ValueError("not today")
