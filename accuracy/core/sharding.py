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


def unsupported(sharding: str, seqlen: int, size: int) -> str | None:
    """Why a sequence cannot be cut so, or None."""
    parts = 2 * size if sharding == "zigzag" else size
    if seqlen % parts == 0:
        return None
    below, above = seqlen // parts * parts, (seqlen // parts + 1) * parts
    nearest = f"{below} or {above}" if below else f"{above}"
    return (
        f"problem.seqlen={seqlen} does not divide into {parts} equal parts ({sharding} sharding, world_size {size});"
        f" nearest allowed: {nearest}; or pad, with the padding as a document: problem.seqlen={above}"
        f" problem.documents={seqlen}+{above - seqlen}"
    )
