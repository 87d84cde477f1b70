"""Real ranks over NCCL, and the packages that may be missing."""

from collections.abc import Iterator

import pytest
import torch

from tests.contract.package.driving import missing
from tests.real_ranks import RealRanks


@pytest.fixture(scope="session")
def gpus() -> Iterator[RealRanks]:
    ranks = RealRanks(tuple(size for size in (1, 2, 4) if size <= torch.cuda.device_count()), "nccl", timeout=600.0)
    yield ranks
    ranks.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that names a variant of a package that is missing is skipped with the package's own words."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        if parameters and (reason := missing(str(parameters.params.get("variant", "")))):
            item.add_marker(pytest.mark.skip(reason=reason))
