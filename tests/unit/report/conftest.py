"""One run for all tests: 46 cases of known growth."""

from pathlib import Path

import pytest

from tests.unit.report.synthetic import Shape, write_run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with one unsupported and one failed case."""
    variants, dtypes = ("bpt", "single_device", "ring", "striped", "zigzag"), ("float16", "bfloat16")
    reasons = ("the kernel lacks float64", "CUDA out of memory")
    shape = Shape(variants, dtypes, (1, 2, 4), (0, 1), ("out", "lse", "dq"), reasons=reasons)
    return write_run(tmp_path_factory.mktemp("run"), shape)
