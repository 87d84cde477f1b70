"""The operators inside torch take what our CUDA kernels hand them, seen without a GPU.

On the meta device operators compute shapes only. Of `_efficient_attention_backward` torch's own meta function has other
arguments than the operator; what is handed to it is held against the operator's schema instead.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from accuracy.kernel import torch_cudnn, torch_efficient
from accuracy.kernel.base import Kernel

SHAPES = ((128, True), (37, True), (37, False), (1, True))  # rows, causal
KEYS = 128


def forward(kernel: Kernel, rows: int, causal: bool) -> list[Tensor]:
    """dout, q, k, v, out, lse for lengths that are no multiple of 32, shared heads, more keys than rows."""
    q, dout = (torch.empty(2, rows, 4, 64, dtype=torch.bfloat16, device="meta") for _ in range(2))
    k, v = (torch.empty(2, KEYS, 2, 64, dtype=torch.bfloat16, device="meta") for _ in range(2))
    out, lse = kernel.forward(q, k, v, scale=0.3, causal=causal, out_dtype=torch.bfloat16)
    assert (out.shape, lse.shape, lse.dtype) == (q.shape, (2, 4, rows), torch.float32)
    return [dout, q, k, v, out, lse]


def check_gradients(kernel: Kernel, tensors: list[Tensor], causal: bool) -> None:
    gradients = kernel.backward(*tensors, scale=0.3, causal=causal, gradient_dtype=torch.bfloat16)
    assert [(x.shape, x.dtype) for x in gradients] == [(x.shape, torch.bfloat16) for x in tensors[1:4]]


def test_torch_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_cudnn, "_has_four_dimensions", lambda: True)
    kernel = torch_cudnn.KERNEL().build("cuda")
    for rows, causal in SHAPES:
        check_gradients(kernel, forward(kernel, rows, causal), causal)


@pytest.mark.parametrize(("rows", "causal"), SHAPES)
def test_torch_efficient(monkeypatch: pytest.MonkeyPatch, rows: int, causal: bool) -> None:
    kernel = torch_efficient.KERNEL().build("cuda")
    tensors = forward(kernel, rows, causal)
    handed: dict[str, Any] = {}

    def operator(*arguments: Any, **named: Any) -> tuple[Tensor | None, ...]:
        known = torch.ops.aten._efficient_attention_backward.default._schema.arguments
        handed.update(zip((each.name for each in known if not each.kwarg_only), arguments, strict=True), **named)
        assert set(named) <= {each.name for each in known if each.kwarg_only}
        return *(torch.empty_like(handed[name]) for name in ("query", "key", "value")), None

    monkeypatch.setattr(torch_efficient, "aten", SimpleNamespace(_efficient_attention_backward=operator))
    check_gradients(kernel, tensors, causal)
    assert handed["logsumexp"].shape == (2, 4, -(-rows // 32) * 32)
    assert handed["grad_out_"] is tensors[0]
    assert handed["out"].shape == handed["query"].shape == (2, rows, 4, 64)
    assert handed["key"].shape == handed["value"].shape == (2, KEYS, 4, 64)
    assert (handed["max_seqlen_q"], handed["max_seqlen_k"], handed["dropout_p"]) == (rows, KEYS, 0.0)
    assert (handed["custom_mask_type"], handed["scale"], handed["num_splits_key"]) == (2 if causal else 0, 0.3, 1)
