"""Which rank holds which token: one explicit map between the global sequence and (rank, local position).

Used for cutting inputs, for comparing, and for plotting error by token position. Rank r of W holds

- contiguous: tokens [r S/W, (r+1) S/W);
- zigzag: of 2W chunks, chunk r and then chunk 2W-1-r: equal work under a causal mask;
- striped: tokens r, r+W, r+2W, ... (Brandon et al. 2023).
"""

import torch
from torch import Tensor

SHARDINGS = ("contiguous", "zigzag", "striped")


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


def segments(sharding: str, rank: int, length: int, size: int) -> list[tuple[slice, int]]:
    """A rank's runs of consecutive tokens: (local rows, global token of the first). Not for striped."""
    if sharding == "contiguous":
        return [(slice(0, length), rank * length)]
    half = length // 2
    return [(slice(0, half), rank * half), (slice(half, length), (2 * size - 1 - rank) * half)]


def unsupported(sharding: str, seqlen: int, size: int) -> str | None:
    """Why a sequence cannot be cut so, or None."""
    parts = 2 * size if sharding == "zigzag" else size
    if seqlen % parts == 0:
        return None
    below, above = seqlen // parts * parts, (seqlen // parts + 1) * parts
    nearest = f"{below} or {above}" if below else f"{above}"
    return (
        f"problem.seqlen={seqlen} does not divide into {parts} equal parts ({sharding} sharding, world_size {size});"
        f" nearest allowed: {nearest}"
    )
