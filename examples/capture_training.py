"""What the attention of a model in training got and returned is saved, and compared with float64 on those inputs."""

import sys
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

import accuracy


class Layer(nn.Module):
    def __init__(self, dim: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def main(folder: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 64), Layer(), Layer(), nn.Linear(64, 50))
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(6):
        text = torch.randint(50, (2, 65))
        with accuracy.capture(model, folder, every=3):
            loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
            loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    print(accuracy.judge(folder).sentence)  # on the command line: accuracy judge FOLDER


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else temporary)
