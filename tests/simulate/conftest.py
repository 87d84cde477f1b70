import pytest

from accuracy.simulate import fold


@pytest.fixture
def places_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA. 32 heads fill the CPU's vector registers wherever a row begins, so that merges may fold there too."""
    monkeypatch.setattr(fold, "position_is_irrelevant", lambda x: True)
