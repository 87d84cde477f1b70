"""A small model whose attention is captured and judged."""

from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

import accuracy


class Layer(torch.nn.Module):
    """Projections and torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.attention = torch.nn.Linear(32, 96, bias=False), torch.nn.Identity()

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).unbind(2)
        out = scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)), is_causal=True)
        return x + out.transpose(1, 2).flatten(2)


def capture(folder: str) -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(Layer(), Layer()).bfloat16()
    x = torch.randn(2, 64, 32).bfloat16()
    with accuracy.capture(model, folder):
        model(x).float().square().sum().backward()
    accuracy.capture.wait()
    found = accuracy.judge(folder, device="cpu")
    rows = found.rows if hasattr(found, "rows") else found.results
    rows.to_csv(Path(folder) / "judgement.csv", index=False)
