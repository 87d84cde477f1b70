"""One pool of real ranks for the whole folder, and the packages that may be missing."""

from collections.abc import Iterator

import pytest
import torch

from accuracy.package import installed
from tests.real_ranks import RealRanks

DISTRIBUTIONS = {
    "ring_flash_attn": "ring-flash-attn",
    "yunchang": "yunchang",
    "ring_attention_pytorch": "ring-attention-pytorch",
    "ringmaster": "axolotl-ringmaster",
    "transformer_engine": "transformer_engine",
}


@pytest.fixture(scope="session")
def pool() -> Iterator[RealRanks]:
    ranks = RealRanks((1, 2, 3, 4), "gloo", timeout=600.0)
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def gpus() -> Iterator[RealRanks]:
    ranks = RealRanks(tuple(size for size in (1, 2, 4) if size <= torch.cuda.device_count()), "nccl", timeout=600.0)
    yield ranks
    ranks.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that names a variant of a package that is missing is skipped with the package's own words."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        variant = str(parameters.params.get("variant", "")) if parameters else ""
        for prefix, distribution in DISTRIBUTIONS.items():
            if variant.startswith(prefix) and (missing := installed.unsupported(distribution)):
                item.add_marker(pytest.mark.skip(reason=missing))
