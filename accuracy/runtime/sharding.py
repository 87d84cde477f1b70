"""Tensors cut into the ranks' shards (`accuracy.core.sharding`) and joined again."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core.sharding import lengths_of, padded_length


def cut(tensor: Tensor, sharding: str, size: int) -> Tensor:
    """Shards of a (B, S, ...) tensor: (W, B, S/W, ...), contiguous in memory; zeros behind S that W cannot share,
    and behind each rank's tokens where these are fewer than another's."""
    if lengths := lengths_of(sharding):
        parts = tensor.split(lengths, 1)
        return torch.stack([_behind(x, max(lengths) - x.shape[1]) for x in parts])
    if behind := padded_length(sharding, tensor.shape[1], size) - tensor.shape[1]:
        tensor = _behind(tensor, behind)
    if sharding == "striped":
        return tensor.unflatten(1, (-1, size)).movedim(2, 0).contiguous()
    if sharding == "contiguous" or size == 1:
        return tensor.unflatten(1, (size, -1)).transpose(0, 1).contiguous()
    chunks = tensor.unflatten(1, (2 * size, -1)).transpose(0, 1)
    return torch.cat([chunks[:size], chunks[size:].flip(0)], dim=2)


def _behind(x: Tensor, count: int) -> Tensor:
    """(B, S', ...) with so many zeros behind its tokens."""
    return F.pad(x, (*[0] * (2 * x.dim() - 4), 0, count))


def join(shards: Tensor, sharding: str) -> Tensor:
    """The (B, S, ...) tensor of shards (W, B, S/W, ...): the inverse of `cut`."""
    if lengths := lengths_of(sharding):
        return torch.cat([x[:, :length] for x, length in zip(shards, lengths, strict=True)], 1)
    if sharding == "striped":
        return shards.movedim(0, 2).flatten(1, 2)
    if sharding == "contiguous" or len(shards) == 1:
        return shards.transpose(0, 1).flatten(1, 2)
    front, back = shards.unflatten(2, (2, -1)).unbind(2)
    return torch.cat([front, back.flip(0)]).transpose(0, 1).flatten(1, 2)


def joined(parts: Sequence[Tensor], sharding: str, documents: Sequence[int] = ()) -> Tensor:
    """As `join`, of one or several shards; documents: their lengths, where each rank has a part of each."""
    if len(parts) == 1:
        return parts[0]
    shards = torch.stack(list(parts))
    each = shards.split([length // len(shards) for length in documents or (shards.shape[2] * len(shards),)], 2)
    return torch.cat([join(part, sharding) for part in each], 1)


def cut_documents(tensor: Tensor, sharding: str, size: int, documents: Sequence[int]) -> Tensor:
    """The inverse of `joined`."""
    return torch.cat([cut(part, sharding, size) for part in tensor.split(list(documents), 1)], 2)


def token_map(sharding: str, seqlen: int, size: int) -> Tensor:
    """Global token of every (rank, local position): int64 (W, S/W), a permutation of 0..S-1; padding from S on."""
    if lengths := lengths_of(sharding):
        tokens = cut(torch.arange(seqlen).unsqueeze(0), sharding, size).squeeze(1)
        behind = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
        tokens[behind] = torch.arange(seqlen, tokens.numel())
        return tokens
    return cut(torch.arange(padded_length(sharding, seqlen, size)).unsqueeze(0), sharding, size).squeeze(1)
