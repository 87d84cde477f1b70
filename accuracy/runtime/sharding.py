"""Tensors cut into the ranks' shards (`accuracy.core.sharding`) and joined again."""

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.case import Case
from accuracy.core.sharding import by_document, lengths_of, of_each, padded_length
from accuracy.runtime import arguments
from accuracy.runtime.layout import PACKED


def cut(tensor: Tensor, sharding: str, size: int) -> Tensor:
    """Shards of a (B, S, ...) tensor: (W, B, S/W, ...), contiguous in memory; zeros behind S that W cannot share,
    and behind each rank's tokens where these are fewer than another's."""
    sharding, documents = by_document(sharding)
    if documents:
        whole = _behind(tensor, sum(documents) - tensor.shape[1])
        return torch.cat([cut(part, sharding, size) for part in whole.split(documents, 1)], 2)
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
    sharding, documents = by_document(sharding)
    if documents:
        size = len(shards)
        each = shards.split([padded_length(sharding, length, size) // size for length in documents], 2)
        return torch.cat([join(x, sharding)[:, :length] for x, length in zip(each, documents, strict=True)], 1)
    if lengths := lengths_of(sharding):
        return torch.cat([x[:, :length] for x, length in zip(shards, lengths, strict=True)], 1)
    if sharding == "striped":
        return shards.movedim(0, 2).flatten(1, 2)
    if sharding == "contiguous" or len(shards) == 1:
        return shards.transpose(0, 1).flatten(1, 2)
    front, back = shards.unflatten(2, (2, -1)).unbind(2)
    return torch.cat([front, back.flip(0)]).transpose(0, 1).flatten(1, 2)


def sharding_of(case: Case) -> str:
    """Which tokens a case's ranks have: a user's function of packed sequences, by its variant's sharding of each."""
    sharding, options = case.variant.sharding, dict(case.variant.options)
    documents = case.problem.padded(sharding, case.world_size).documents
    if case.world_size == 1 or not documents or lengths_of(sharding) or options.get("layout") not in PACKED:
        return sharding
    found = plugins.load_function(str(options["fn"]))
    its_own = hasattr(found.module, "DISTRIBUTION") or arguments.by_slices(found.function)
    return sharding if its_own else of_each(sharding, documents)


def token_map(sharding: str, seqlen: int, size: int) -> Tensor:
    """Global token of every (rank, local position): int64 (W, S/W), a permutation of 0..S-1; padding from S on."""
    tokens = cut(torch.arange(1, seqlen + 1).unsqueeze(0), sharding, size).squeeze(1) - 1
    if (behind := tokens < 0).any():
        tokens[behind] = torch.arange(seqlen, tokens.numel())
    return tokens
