"""How a callable takes q, k, v and gives back out and lse, and how that becomes ours: (B, S, H, D) and (B, H, S).

`LAYOUTS`: of a function that is measured. Autograd follows every view and copy, so gradients arrive in our layout too.
`returned` reads what such a function returned, or says in one sentence what that is instead.
`CAPTURED`: of calls of a live model, tensor by tensor: bshd, bhsd, sbhd (sequence first), and thd, packed documents.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from accuracy.core.errors import WrongResult
from accuracy.runtime.arguments import OF_SLICES

PACKED = ("thd", "varlen", "thd_whole")
"""Packed sequences, out (T, H, D), lse (H, T); thd_whole: over ranks, where each is told of all of them."""
LAYOUTS = ("bshd", "bhsd", "sbhd", "kvpacked", "qkvpacked", *PACKED)
CAPTURED = ("bshd", "bhsd", "sbhd", "thd")
SWAPPED = {"bhsd": (1, 2), "sbhd": (0, 1)}
"""By layout, the dimensions of (B, S, heads, D) that change places."""


def laid_out(
    layout: str, q: Tensor, k: Tensor, v: Tensor, documents: Sequence[int]
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """What a callable gets for q (B, S, H, D), k, v (B, S, Hk, D), and the borders of documents, of which packed
    sequences alone tell: the batch's sequences, or its documents, one behind the other, and where each begins."""
    if layout == "kvpacked":
        return (q, torch.stack((k, v), dim=2)), {}
    if layout == "qkvpacked":
        return (torch.stack((q, k, v), dim=2),), {}
    if layout not in PACKED:
        return tuple(arranged(x, layout) for x in (q, k, v)), {}
    batch, length = q.shape[:2]
    inner = torch.tensor(documents or (0, length), dtype=torch.int32)
    borders = torch.cat([inner[:1], *(inner[1:] + item * length for item in range(batch))]).to(q.device)
    told = {"cu_seqlens": borders, "cu_seqlens_padded": borders, "max_seqlen": int(inner.diff().max())}
    slices = dict(zip(OF_SLICES, (slice(0, batch * length), 1), strict=True))
    return tuple(x.flatten(0, 1) for x in (q, k, v)), told | slices


def called_with(layout: str) -> tuple[int, Iterable[str]]:
    """How many tensors a function in a layout is given, and by which words it is told more."""
    one = torch.zeros(1, 1, 1, 1)
    tensors, words = laid_out(layout, one, one, one, ())
    return len(tensors), words


EXPECTED = "expected out, or (out, lse, ...)"


def returned(result: Any, layout: str, q: Tensor, width: int) -> tuple[Tensor, Tensor | None]:
    """Return out (B, S/W, H, width) and lse (B, H, S/W) or None, of what came in `layout` for q (B, S/W, H, D).

    What comes behind lse, as flash-attn's state of dropout, is not read, nor are weights (B, H, S/W, S), which other
    attention returns in its place.

    Raises:
        WrongResult: where it is something else.
    """
    values = result if isinstance(result, tuple | list) else (result,)
    if not values:
        raise WrongResult(f"the function returned nothing in a {type(values).__name__}, {EXPECTED}")
    out, lse = (*values, None)[:2]
    rows = q.shape[0], q.shape[2], q.shape[1]
    if layout not in PACKED and isinstance(lse, Tensor) and lse.dim() == 4 and lse.shape[:3] == rows:
        lse = None  # weights
    if not isinstance(out, Tensor):
        raise WrongResult(f"the function returned {_named(out)}, {EXPECTED}")
    if lse is not None and not isinstance(lse, Tensor):
        raise WrongResult(f"lse came as {_named(lse)}, expected a tensor or None")
    shape_of_out, shape_of_lse = _shapes(layout, (*q.shape[:3], width))
    for name, x, shape in (("out", out, shape_of_out), ("lse", lse, shape_of_lse)):
        if x is not None and tuple(x.shape) != shape:
            swapped = layout not in PACKED and x.dim() > 2 and tuple(x.transpose(1, 2).shape) == shape
            remedy = ": heads and tokens are swapped" if swapped else ""
            raise WrongResult(f"{name} came as {tuple(x.shape)}, expected {shape}{remedy}")
        if x is not None and x.device.type != q.device.type:
            raise WrongResult(f"{name} came on {x.device.type}, expected {q.device.type}")
    if out.dtype != q.dtype:
        raise WrongResult(f"out came as {_word(out)}, expected {_word(q)}")
    if lse is not None and not lse.dtype.is_floating_point:
        raise WrongResult(f"lse came as {_word(lse)}, expected float32, or the dtype that it is computed in")
    if layout not in PACKED:
        return canonical(out, layout), None if lse is None else lse.detach()
    out = out.unflatten(0, (len(q), -1))
    return out, None if lse is None else lse.detach().unflatten(1, (len(q), -1)).transpose(0, 1)


def _shapes(layout: str, of_out: tuple[int, int, int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes in which a function returns out and lse. of_out: (B, S/W, H, width), out in our layout."""
    batch, length, heads, dim = of_out
    if layout in PACKED:
        return (batch * length, heads, dim), (heads, batch * length)
    return tuple(arranged(torch.empty(of_out, device="meta"), layout).shape), (batch, heads, length)


def _word(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _named(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__name__}".replace("builtins.", "")


def canonical(x: Tensor, layout: str) -> Tensor:
    """A view (B, S, heads, D). thd: packed documents, one batch; bhsd also without its batch."""
    if layout == "thd" or (layout == "bhsd" and x.dim() == 3):
        x = x.unsqueeze(0)
    return x.transpose(*SWAPPED[layout]) if layout in SWAPPED else x


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


def arranged(x: Tensor, layout: str) -> Tensor:
    """(B, S, heads, D) as a function takes it."""
    return x.transpose(*SWAPPED[layout]).contiguous() if layout in SWAPPED else x[0] if layout == "thd" else x
