"""How far flash-attention's calls fold, from its own rules: worked by hand for the 132 processors of an H200."""

from accuracy.kernel.block import flash_fold

H200 = 132
RANK = (1, 512, 16, 128)


def test_calls_fold_as_far_as_the_package_s_own_rules_keep_every_bit() -> None:
    """Keys of one tile are never cut. 264 slots, of which 0.8 are 211.2: 212 tiles of rows leave the keys whole, 64
    with 4 parts fill 256 (3: 192), 30 with 7 fill 210, more than 0.85 of the 240 of 8 parts. dq of 5 heads has 27
    partial sums for more tiles of keys; 27 tiles and fewer, one a sum, are added in the order in which a single sum
    adds them, that of 132 and more heads. Three tiles of keys, 5 heads: 13 calls have 65 heads and 3 sums, 14 have 70
    and 2. A rank of 16: 16 heads of 512 rows and keys are cut in 2."""
    assert {flash_fold.forward_splits(planes, 64, 128, 128, H200) for planes in range(1, 400)} == {1}
    cuts = ((1, 129, 2), (212, 4096, 1), (64, 4096, 4), (30, 4096, 7))
    assert all(flash_fold.forward_splits(planes, 64, keys, 128, H200) == n for planes, keys, n in cuts)
    assert [flash_fold.backward_parts(5, 128 * tiles, 64, H200) for tiles in (40, 28, 27, 3)] == [27, 27, 1, 1]
    assert [flash_fold.backward_parts(planes, 128 * 40, 64, H200) for planes in (131, 132, 500)] == [2, 1, 1]
    for way, calls, shape, keys, expected in (
        ("backward", 64, (1, 384, 5, 64), 384, 13), ("forward", 64, (1, 1, 8, 64), 4096, 1),
        ("forward", 10**6, (2, 64, 8, 64), 64, flash_fold.GRID_LIMIT // 2), ("forward", 16, RANK, 512, 1),
    ):  # fmt: skip
        assert flash_fold.most(way, calls, shape, keys, H200) == expected, (way, shape)
