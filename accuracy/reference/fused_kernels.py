"""Triton: float64 attention on the tensor cores: a kernel for the forward, one for the backward's weights and slopes.

Everything is float64 and in powers of two: s = log2(e) scale q k^T comes from queries that were multiplied beforehand,
p = 2^(s - m); a Python float would arrive as float32. Rows and keys are padded with zeros to whole tiles. A row sees
keys begin <= key < end, an interval that only moves on from row to row.
"""

import triton
import triton.language as tl

LN_2 = tl.constexpr(0.6931471805599453)
MAGIC = tl.constexpr(6755399441055744.0)
"""1.5 2^52: a number to which it is added ends up rounded to a whole one, in the sum's last bits."""
SMALLEST = tl.constexpr(-1000.0)
"""2^-1000 stands for what is less: no sum of weights of which the largest is 1 notices."""
NOTHING = tl.constexpr(-1e300)
"""A row's maximum before its first key."""
BAND = tl.constexpr(8)
"""Tiles of rows whose squares are computed together, so that their keys are read once from memory."""


@triton.jit
def power_of_two(x):
    """2^x for float64 |x| <= 1000, within 1.5 units in the last place: 2^r for r = x - round(x), then the exponent.

    The polynomial is 2^r's Chebyshev interpolation of degree 11 on [-1/2, 1/2], 4e-18 from it.
    """
    shifted = x + MAGIC
    r = x - (shifted - MAGIC)
    power = r * 4.4558179083360645e-10 + 7.074194297288521e-09
    power = power * r + 1.0178057087733941e-07
    power = power * r + 1.3215432535912375e-06
    power = power * r + 1.5252733841556773e-05
    power = power * r + 0.00015403530463724353
    power = power * r + 0.001333355814640647
    power = power * r + 0.009618129107587256
    power = power * r + 0.055504108664821625
    power = power * r + 0.24022650695910158
    power = power * r + 0.6931471805599453
    power = power * r + 1.0
    bits = power.to(tl.int64, bitcast=True) + (shifted.to(tl.int64, bitcast=True) << 52)
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def load(pointer, tile: tl.constexpr, dim: tl.constexpr):
    """(tile, dim): whole rows of a contiguous matrix."""
    return tl.load(pointer + tl.arange(0, tile)[:, None] * dim + tl.arange(0, dim)[None, :])


@triton.jit
def load_swapped(pointer, tile: tl.constexpr, dim: tl.constexpr):
    """The same, rows in the order 0 2 4 6 1 3 5 7 of each eight: see `swapped`."""
    place = tl.arange(0, tile)
    row = place // 8 * 8 + place % 4 * 2 + place % 8 // 4
    return tl.load(pointer + row[:, None] * dim + tl.arange(0, dim)[None, :])


@triton.jit
def swapped(weights, row_tile: tl.constexpr, key_tile: tl.constexpr):
    """Columns in the order 0 2 4 6 1 3 5 7 of each eight: where a product leaves its elements and where the next one
    wants its left factor's differ by just that, so that none has to move from thread to thread."""
    pairs = tl.permute(tl.reshape(weights, (row_tile, key_tile // 8, 4, 2)), (0, 1, 3, 2))
    return tl.reshape(pairs, (row_tile, key_tile))


@triton.jit(do_not_specialize=["share"])
def forward(
    query, key, value, gradient, out, lse, delta, lse_bits, begins, ends, ranges, padded_rows, padded_keys, share,
    dim: tl.constexpr, row_tile: tl.constexpr, key_tile: tl.constexpr, online: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one head: out, lse, log2(e) lse and delta = sum dout out.

    query, gradient, out: (heads, padded_rows, dim); key, value: (heads / share, padded_keys, dim); lse, delta,
    lse_bits: (heads, padded_rows); begins, ends: int32 (padded_rows,); ranges: int32 (row tiles, 4): where keys begin
    that need the mask, that need none, that do again, and where they end. online: subtract the running maximum; without
    it every |s| must be below 450.
    """
    tiles = padded_rows // row_tile
    tile = tiles - 1 - tl.program_id(0) % tiles  # the last rows see most: the short ones fill the last gaps
    head = (tl.program_id(0) // tiles).to(tl.int64)
    first = tile * row_tile
    row = first + tl.arange(0, row_tile)
    begin, end = tl.load(begins + row), tl.load(ends + row)
    place = head * padded_rows + first
    queries = load(query + place * dim, row_tile, dim)
    key += head // share * padded_keys * dim
    value += head // share * padded_keys * dim
    total = tl.zeros((row_tile,), tl.float64)
    top = total + NOTHING if online else total
    accumulator = tl.zeros((row_tile, dim), tl.float64)
    ranges += tile * 4
    for first_key in tl.range(tl.load(ranges), tl.load(ranges + 1), key_tile, num_stages=1):
        accumulator, top, total = forward_step(
            accumulator, top, total, queries, key, value, first_key, begin, end,
            dim, row_tile, key_tile, True, online,
        )  # fmt: skip
    for first_key in tl.range(tl.load(ranges + 1), tl.load(ranges + 2), key_tile):
        accumulator, top, total = forward_step(
            accumulator, top, total, queries, key, value, first_key, begin, end,
            dim, row_tile, key_tile, False, online,
        )  # fmt: skip
    for first_key in tl.range(tl.load(ranges + 2), tl.load(ranges + 3), key_tile, num_stages=1):
        accumulator, top, total = forward_step(
            accumulator, top, total, queries, key, value, first_key, begin, end,
            dim, row_tile, key_tile, True, online,
        )  # fmt: skip
    total = tl.where(total == 0.0, 1.0, total)  # of padded rows
    accumulator = accumulator / total[:, None]
    bits = top + tl.log2(total)
    stored = tl.arange(0, row_tile)[:, None] * dim + tl.arange(0, dim)[None, :]
    tl.store(out + place * dim + stored, accumulator)
    tl.store(lse_bits + head * padded_rows + row, bits)
    tl.store(lse + head * padded_rows + row, bits * LN_2)
    products = accumulator * load(gradient + place * dim, row_tile, dim)
    tl.store(delta + head * padded_rows + row, tl.sum(products, 1))


@triton.jit
def forward_step(
    accumulator, top, total, queries, key, value, first_key, begin, end,
    dim: tl.constexpr, row_tile: tl.constexpr, key_tile: tl.constexpr, masked: tl.constexpr, online: tl.constexpr,
):  # fmt: skip
    """Bring in the keys from first_key on."""
    offset = tl.cast(first_key, tl.int64) * dim
    scores = tl.dot(queries, tl.trans(load(key + offset, key_tile, dim)), out_dtype=tl.float64)
    if masked:
        place = first_key + tl.arange(0, key_tile)
        seen = (place[None, :] >= begin[:, None]) & (place[None, :] < end[:, None])
    if online:
        if masked:
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        fade = power_of_two(tl.maximum(top - higher, SMALLEST))
        total, accumulator, top = total * fade, accumulator * fade[:, None], higher
        scores = tl.maximum(scores - higher[:, None], SMALLEST)
    weights = power_of_two(scores)
    if masked:
        weights = tl.where(seen, weights, 0.0)
    total += tl.sum(weights, 1)
    values = load_swapped(value + offset, key_tile, dim)
    return tl.dot(swapped(weights, row_tile, key_tile), values, accumulator, out_dtype=tl.float64), top, total


@triton.jit(do_not_specialize=["share", "bound"])
def backward(
    query, key, value, gradient, lse_bits, delta, weights, slopes, begins, ends, padded_rows, padded_keys, share,
    first_row, first_key, rows, keys, bound,
    dim: tl.constexpr, row_tile: tl.constexpr, key_tile: tl.constexpr, chunk: tl.constexpr, online: tl.constexpr,
):  # fmt: skip
    """One tile of a square of one head: weights p and slopes p (dp - delta), both (heads, rows, keys), zero where a row
    does not see a key.

    The others as in `forward`. bound: dim again, unknown to the compiler, which would else unroll the products' loops.
    """
    across, down = keys // key_tile, rows // row_tile
    band = tl.program_id(0) // (BAND * across)
    inside = tl.program_id(0) % (BAND * across)
    height = tl.minimum(BAND, down - band * BAND)
    local_row = (band * BAND + inside % height) * row_tile
    local_key = inside // height * key_tile
    head = tl.program_id(1).to(tl.int64)
    row = first_row + local_row + tl.arange(0, row_tile)
    place = first_key + local_key + tl.arange(0, key_tile)
    stored = (head * rows + local_row + tl.arange(0, row_tile))[:, None] * keys
    stored += local_key + tl.arange(0, key_tile)[None, :]
    last = tl.load(ends + first_row + local_row + row_tile - 1)
    if (last > first_key + local_key) & (tl.load(begins + first_row + local_row) < first_key + local_key + key_tile):
        at_row = (head * padded_rows + first_row + local_row) * dim
        at_key = (head // share * padded_keys + first_key + local_key) * dim
        scores = product(query + at_row, key + at_key, bound, dim, row_tile, key_tile, chunk)
        scores -= tl.load(lse_bits + head * padded_rows + row)[:, None]
        if online:
            scores = tl.minimum(tl.maximum(scores, SMALLEST), 0.0 - SMALLEST)  # unseen keys may be above the lse
        seen = (place[None, :] >= tl.load(begins + row)[:, None]) & (place[None, :] < tl.load(ends + row)[:, None])
        weight = tl.where(seen, power_of_two(scores), 0.0)
        tl.store(weights + stored, weight)
        slope = product(gradient + at_row, value + at_key, bound, dim, row_tile, key_tile, chunk)
        slope -= tl.load(delta + head * padded_rows + row)[:, None]
        tl.store(slopes + stored, slope * weight)
    else:
        tl.store(weights + stored, tl.zeros((row_tile, key_tile), tl.float64))
        tl.store(slopes + stored, tl.zeros((row_tile, key_tile), tl.float64))


@triton.jit
def product(left, right, bound, dim: tl.constexpr, row_tile: tl.constexpr, key_tile: tl.constexpr, chunk: tl.constexpr):
    """left right^T of (row_tile, dim) and (key_tile, dim), dim by chunks."""
    column = tl.arange(0, chunk)[None, :]
    rows, keys = tl.arange(0, row_tile)[:, None] * dim + column, tl.arange(0, key_tile)[:, None] * dim + column
    total = tl.zeros((row_tile, key_tile), tl.float64)
    for first in tl.range(0, bound, chunk):
        total = tl.dot(
            tl.load(left + first + rows), tl.trans(tl.load(right + first + keys)), total, out_dtype=tl.float64
        )
    return total
