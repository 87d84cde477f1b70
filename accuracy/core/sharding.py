"""Which rank holds which token? Rank r of W: contiguous, tokens [r S/W, (r+1) S/W); zigzag, of 2W chunks, chunk r and
then chunk 2W-1-r, equal work under a causal mask; striped, tokens r, r+W, r+2W, ... (Brandon et al. 2023).
"""

SHARDINGS = ("contiguous", "zigzag", "striped")


def segments(sharding: str, rank: int, length: int, size: int) -> list[tuple[slice, int]]:
    """A rank's runs of consecutive tokens: (local rows, global token of the first). Not for striped."""
    if sharding == "contiguous":
        return [(slice(0, length), rank * length)]
    half = length // 2
    return [(slice(0, half), rank * half), (slice(half, length), (2 * size - 1 - rank) * half)]


def parts_of(sharding: str, size: int) -> int:
    """Into how many equal parts a sequence is cut: a single rank has all of it, in order."""
    return 2 * size if sharding == "zigzag" and size > 1 else size


def padded_length(sharding: str, seqlen: int, size: int) -> int:
    """The least length from seqlen on that ranks can share."""
    return seqlen + -seqlen % parts_of(sharding, size)


def unsupported(sharding: str, seqlen: int, size: int) -> str | None:
    """Why a sequence cannot be cut so, or None."""
    parts = parts_of(sharding, size)
    if seqlen % parts == 0:
        return None
    below, above = seqlen // parts * parts, (seqlen // parts + 1) * parts
    nearest = f"{below} or {above}" if below else f"{above}"
    return (
        f"problem.seqlen={seqlen} does not divide into {parts} equal parts ({sharding} sharding, world_size {size});"
        f" nearest allowed: {nearest}; or pad to {above}: problem.padding=end"
    )
