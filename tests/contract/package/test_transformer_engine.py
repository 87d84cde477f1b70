"""TransformerEngine's own context parallelism, forward and backward, has the bits of its simulated twins.

On CPUs its merge runs as written (`test_faithful`), on GPUs compiled, as published. The compiler contracts one of the
merge's two products into a fused multiply-add, in some of the elements the one and in some the other (seen on an H200,
torch 2.11), so no formula has its bits: float32 numbers one unit apart round to two 16-bit ones where a border lies
between them, once in 2^16 (bfloat16) or 2^13 (float16). With NVTE_TORCH_COMPILE=0 every bit is the twin's.
"""

import os

import pytest
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.package.installed import OURS
from accuracy.runtime.sharding import join
from tests.contract.package.driving import case_of, results_of
from tests.real_ranks import RealRanks

pytestmark = pytest.mark.xdist_group("packages")
P2P, GATHER, A2A, GRID = (f"transformer_engine_{name}" for name in ("p2p", "all_gather", "a2a", "a2a_p2p"))
COMPILED = os.environ.get("NVTE_TORCH_COMPILE", "1") != "0"
SHARE = {"bfloat16": 4 / 2**16, "float16": 4 / 2**13}  # of elements: four times what one rounding in two ways makes
NAMES = ("out", "dq", "dk", "dv")


@pytest.mark.parametrize("variant", [GRID])
def test_its_grid_is_its_ring_of_pairs(pool: RealRanks, variant: str) -> None:
    """a2a+p2p on 2 x 2 ranks is p2p on 2, each with half of the heads."""

    def whole(case: Case) -> dict[str, Tensor]:
        ranks = results_of(pool, case)
        return {name: join(torch.stack([each[name] for each in ranks]), "zigzag") for name in NAMES}

    grid, ring = (whole(case_of(*words, "dtype=bfloat16")) for words in
                  ((variant, "world_size=4"), (P2P, "world_size=2")))  # fmt: skip
    assert all(torch.equal(grid[name], ring[name]) for name in NAMES)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("variant", [P2P, GATHER, A2A])
def test_on_gpus_its_twin_has_its_bits(gpus: RealRanks, variant: str, dtype: str) -> None:
    """Over flash-attn and NCCL; 4,096 tokens, so that every rank has whole tiles. p2p compiled: but for its fma."""
    pytest.importorskip("flash_attn")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    written = ["precision.merge=rescaled_twice"] if variant == P2P and not COMPILED else []
    for size in gpus.sizes[1:]:
        words = ("device=cuda", "kernel=flash_attn", f"dtype={dtype}", f"world_size={size}", "problem.seqlen=4096",
                 "problem.head_dim=128", "problem.batch=1", "problem.heads_kv=8")  # fmt: skip
        cases = case_of(variant, *words), case_of(OURS[variant], *words, *written)
        pairs = list(zip(*(results_of(gpus, case) for case in cases), strict=True))
        names = NAMES[:2] if variant == GATHER and size > 2 else NAMES  # NCCL may add in another order
        found = {name: max(float((a[name] != b[name]).double().mean()) for a, b in pairs) for name in names}
        assert max(found.values()) <= (SHARE[dtype] if variant == P2P and COMPILED else 0.0), (size, found)
