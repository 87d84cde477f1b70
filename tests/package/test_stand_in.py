"""The stand-in for flash-attn refuses what it cannot do. (What it does, `test_faithful` shows through the packages.)"""

import sys

import pytest
import torch

from accuracy.kernel.eager import Eager
from accuracy.package import flash_attn_stand_in, substitutes

KERNEL = Eager()
INTERFACE = flash_attn_stand_in.interface(KERNEL)
PLAIN = {"dropout_p": 0.0, "softmax_scale": 0.3, "causal": True, "window_size_left": -1, "window_size_right": -1,
         "softcap": 0.0, "alibi_slopes": None}  # fmt: skip


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize(
    "asked", [{"dropout_p": 0.1}, {"window_size_left": 8}, {"softcap": 30.0}, {"alibi_slopes": torch.ones(4)}]
)
def test_what_it_cannot_do_it_refuses(asked: dict[str, object]) -> None:
    q, k, v = tensors((1, 6, 4, 8), (1, 6, 2, 8), (1, 6, 2, 8))
    with pytest.raises(NotImplementedError, match="no dropout, window"):
        INTERFACE._flash_attn_forward(q, k, v, **{**PLAIN, **asked}, return_softmax=False)


def test_nobody_else_meets_a_stand_in() -> None:
    before = sys.modules.get("flash_attn")
    with substitutes.modules(flash_attn_stand_in.modules(KERNEL)):
        assert sys.modules["flash_attn"].__version__ == flash_attn_stand_in.VERSION
    assert sys.modules.get("flash_attn") is before
