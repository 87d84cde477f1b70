"""The small trained model that comes with the package: its shape, its weights, and text that it was not trained on.

Bytes are its words. `python -m accuracy.stack.train` makes the file again.
"""

import hashlib
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

DIGEST = "d4b0729d2fc3f7c7f867b5d83c2f274b12df002109e50b183e01bfb49ed9f314"
"""SHA-256 of the file: it decides numbers as code does."""
FILE = Path(__file__).with_name("trained.pt")
LAYERS = 8
SHAPE = {"width": 64, "feed_forward": 192, "vocabulary": 256, "heads": 4, "heads_kv": 2, "head_dim": 32}


@cache
def _content() -> dict[str, Tensor]:
    if hashlib.sha256(FILE.read_bytes()).hexdigest() != DIGEST:
        raise RuntimeError(
            f"{FILE.name} is damaged or was trained anew: `python -m accuracy.stack.train` prints its DIGEST"
        )
    content: dict[str, Tensor] = torch.load(FILE, weights_only=True)
    return content


def weights() -> dict[str, Tensor]:
    """bfloat16: `layers.NAME` (LAYERS, ...) for the names of `accuracy.stack.block`, `embedding`, `head`, `norm`."""
    return {name: x for name, x in _content().items() if name != "text"}


def words(batch: int, length: int, seed: int) -> Tensor:
    """int64 (B, length) out of the text kept from the training, another place for another seed; repeated if short."""
    text = _content()["text"].long()
    stride = max(1, len(text) // 8)  # eight seeds have starts of their own
    starts = [(seed * stride + item * length) % len(text) for item in range(batch)]
    place = torch.arange(length)
    return torch.stack([text[(start + place) % len(text)] for start in starts])
