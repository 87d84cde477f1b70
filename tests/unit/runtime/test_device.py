import pytest
import torch

from accuracy.runtime import device


@pytest.mark.parametrize("pieces", [1, 768])
def test_the_peak_is_what_was_touched_above_what_was_held(pieces: int) -> None:
    """48 MiB touched inside, at once or in pieces of 64 KiB, below the size from which the system maps memory apart:
    pages of 4 KiB and the interpreter's own memory take up to 8 MiB. Memory that was freed before shows again."""
    torch.ones(16 * 2**20)
    for _ in range(2):
        with device.measured("cpu") as cost:
            held = [torch.ones(12 * 2**20 // pieces) for _ in range(pieces)]
        assert 40 * 2**20 < cost.peak_bytes < 56 * 2**20
        del held
