"""Tensors cut into the ranks' shards (`accuracy.core.sharding`) and joined again."""

import torch
from torch import Tensor


def cut(tensor: Tensor, sharding: str, size: int) -> Tensor:
    """Shards of a (B, S, ...) tensor: (W, B, S/W, ...), contiguous in memory."""
    if sharding == "striped":
        return tensor.unflatten(1, (-1, size)).movedim(2, 0).contiguous()
    if sharding == "contiguous":
        return tensor.unflatten(1, (size, -1)).transpose(0, 1).contiguous()
    chunks = tensor.unflatten(1, (2 * size, -1)).transpose(0, 1)
    return torch.cat([chunks[:size], chunks[size:].flip(0)], dim=2)


def join(shards: Tensor, sharding: str) -> Tensor:
    """The (B, S, ...) tensor of shards (W, B, S/W, ...): the inverse of `cut`."""
    if sharding == "striped":
        return shards.movedim(0, 2).flatten(1, 2)
    if sharding == "contiguous":
        return shards.transpose(0, 1).flatten(1, 2)
    front, back = shards.unflatten(2, (2, -1)).unbind(2)
    return torch.cat([front, back.flip(0)]).transpose(0, 1).flatten(1, 2)


def token_map(sharding: str, seqlen: int, size: int) -> Tensor:
    """Global token of every (rank, local position): int64 (W, S/W), a permutation of 0..S-1."""
    return cut(torch.arange(seqlen).unsqueeze(0), sharding, size).squeeze(1)
