"""From a function's layout to the one of a capture: q, k, v, out (B, S, heads, D), lse (B, H, S)."""

from typing import Any

from torch import Tensor

LAYOUTS = ("bshd", "bhsd", "sbhd", "thd")


def canonical(x: Tensor, layout: str) -> Tensor:
    """A view (B, S, heads, D). thd: packed documents, one batch; bhsd also without its batch."""
    if layout == "thd":
        return x.unsqueeze(0)
    if layout == "bhsd":
        return (x.unsqueeze(0) if x.dim() == 3 else x).transpose(1, 2)
    return x.transpose(0, 1) if layout == "sbhd" else x


def fits(x: Tensor, layout: str) -> bool:
    """Whether it has as many dimensions as the layout says."""
    return x.dim() in ({"thd": (3,), "bhsd": (3, 4)}.get(layout) or (4,))


def lse_in(returned: Any, q: Tensor) -> Tensor | None:
    """The lse (B, H, S) among what a function returned beside out; q: canonical."""
    batch, rows, heads, _ = q.shape
    for x in returned:
        x = getattr(x, "lse", x)
        if not isinstance(x, Tensor) or not x.is_floating_point():
            continue
        if x.shape == (batch, heads, rows):
            return x
        if x.shape == (batch, rows, heads):
            return x.transpose(1, 2)
        if batch == 1 and x.shape == (heads, rows):
            return x.unsqueeze(0)
    return None


def unpacked(tensors: dict[str, Tensor], layout: str) -> dict[str, Tensor]:
    """q, k and v, canonical, out of arguments called q, k, v, or packed as qkv (..., 3, H, D) or kv (..., 2, H, D)."""
    if "qkv" in tensors:
        parts = dict(zip("qkv", tensors["qkv"].unbind(-3), strict=True))
    elif "kv" in tensors:
        parts = {"q": tensors["q"], **dict(zip("kv", tensors["kv"].unbind(-3), strict=True))}
    else:
        parts = dict(zip("qkv", tensors.values(), strict=True))
    return {name: canonical(x, layout) for name, x in parts.items()}
