"""Which rank holds which token? Rank r of W: contiguous, tokens [r S/W, (r+1) S/W); zigzag, of 2W chunks, chunk r and
then chunk 2W-1-r, equal work under a causal mask; striped, tokens r, r+W, r+2W, ... (Brandon et al. 2023). Lengths,
40+20+36: rank r holds the next n_r tokens, and no two ranks need hold as many. `zigzag of 300+724`: rank r holds a part
of every document of these lengths.
"""

import re
from collections.abc import Sequence

SHARDINGS = ("contiguous", "zigzag", "striped")
UNEVEN = "uneven"  # what a schedule calls shardings by lengths


def lengths_of(sharding: str) -> tuple[int, ...]:
    """How many tokens each rank holds, of a sharding by lengths; nothing of others."""
    return tuple(map(int, sharding.split("+"))) if re.fullmatch(r"[1-9]\d*(\+[1-9]\d*)+", sharding) else ()


def of_each(sharding: str, documents: Sequence[int]) -> str:
    """The sharding of each document; of the whole sequence where there are none."""
    return f"{sharding} of {'+'.join(map(str, documents))}" if documents else sharding


def by_document(sharding: str) -> tuple[str, list[int]]:
    """How each document is cut, and the documents' lengths; no lengths: it is the whole that is cut."""
    kind, _, documents = sharding.partition(" of ")
    return kind, [int(length) for length in documents.split("+") if length]


def kind_of(sharding: str) -> str:
    """Its name among those that a schedule understands."""
    return UNEVEN if lengths_of(sharding) else sharding


def most(sharding: str, length: int) -> int:
    """The tokens of the rank that holds most; length: of a rank where all hold as many."""
    return max(lengths_of(sharding), default=length)


def total(sharding: str, length: int, size: int) -> int:
    """The tokens of all ranks; length: of a rank where all hold as many."""
    return sum(lengths_of(sharding)) or length * size


def segments(sharding: str, rank: int, length: int, size: int) -> list[tuple[slice, int]]:
    """A rank's runs of consecutive tokens: (local rows, global token of the first). Not for striped."""
    if lengths := lengths_of(sharding):
        return [(slice(0, lengths[rank]), sum(lengths[:rank]))]
    if sharding == "contiguous":
        return [(slice(0, length), rank * length)]
    half = length // 2
    return [(slice(0, half), rank * half), (slice(half, length), (2 * size - 1 - rank) * half)]


def parts_of(sharding: str, size: int) -> int:
    """Into how many equal parts a sequence is cut: a single rank has all of it, in order."""
    return 2 * size if sharding == "zigzag" and size > 1 else size


def padded_length(sharding: str, seqlen: int, size: int) -> int:
    """The least length from seqlen on that ranks can share."""
    if lengths_of(sharding):
        return seqlen
    return seqlen + -seqlen % parts_of(sharding, size)


def unsupported(sharding: str, seqlen: int, size: int) -> str | None:
    """Why a sequence cannot be cut so, or None."""
    if by_document(sharding)[1]:  # `accuracy.world.documents.uncut` says it
        return None
    if lengths := lengths_of(sharding):
        fits = len(lengths) == size and sum(lengths) == seqlen
        wrong = f"sharding={sharding} has {len(lengths)} ranks and {sum(lengths)} tokens, not world_size={size} and"
        return None if fits else f"{wrong} problem.seqlen={seqlen}; give a length for each rank, together seqlen"
    parts = parts_of(sharding, size)
    if seqlen % parts == 0:
        return None
    below, above = seqlen // parts * parts, (seqlen // parts + 1) * parts
    nearest = f"{below} or {above}" if below else f"{above}"
    return (
        f"problem.seqlen={seqlen} does not divide into {parts} equal parts ({sharding} sharding, world_size {size});"
        f" nearest allowed: {nearest}; or pad to {above}: problem.padding=end"
    )
