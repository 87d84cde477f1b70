"""On a GPU: copies on their own stream, compiled models, FlashAttention's kernels."""

from pathlib import Path

import pytest
import torch

import accuracy
from tests.live.test_capture import names, stack, trained

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_step_on_a_gpu_is_captured_and_healthy(tmp_path: Path, dtype: torch.dtype) -> None:
    model = stack(None, True, False).cuda().to(dtype)
    x = torch.randn(2, 512, 32, device="cuda", dtype=dtype)
    before = trained(model, x)
    with accuracy.capture(model, tmp_path):
        during = trained(model, x)
        x.detach().fill_(torch.nan)  # what was captured is what was there
    assert all(torch.allclose(a, b, atol=1e-2, rtol=1e-2) for a, b in zip(before, during, strict=True))
    assert names(tmp_path) == ["0@0", "1@0", "2@0"]
    found = accuracy.judge(tmp_path)
    assert found.healthy, found.sentence
