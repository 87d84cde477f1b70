"""How a callable takes q, k, v and gives back out and lse, and how that becomes ours: (B, S, H, D) and (B, H, S).

`LAYOUTS`: of a function that is measured. Autograd follows every view and copy, so gradients arrive in our layout too.
`returned` reads what such a function returned, or says in one sentence what that is instead.
`CAPTURED`: of calls of a live model, tensor by tensor: bshd, bhsd, sbhd (sequence first), and thd, packed documents.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accuracy.core.errors import WrongResult
from accuracy.runtime.arguments import OF_SLICES


@dataclass(frozen=True)
class Layout:
    """arguments: what the callable gets for q (B, S, H, D), k, v (B, S, Hk, D), and the borders of documents, of which
    packed sequences alone tell; out, lse: its results made ours, with the batch size."""

    arguments: Callable[[Tensor, Tensor, Tensor, Sequence[int]], tuple[tuple[Tensor, ...], dict[str, Any]]]
    out: Callable[[Tensor, int], Tensor]
    lse: Callable[[Tensor, int], Tensor]


def _same(x: Tensor, batch: int) -> Tensor:
    return x


def _packed_sequences(
    q: Tensor, k: Tensor, v: Tensor, documents: Sequence[int]
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """The batch's sequences, or its documents, one behind the other: (T, heads, D) and where each begins."""
    batch, length = q.shape[:2]
    inner = torch.tensor(documents or (0, length), dtype=torch.int32)
    borders = torch.cat([inner[:1], *(inner[1:] + item * length for item in range(batch))]).to(q.device)
    told = {"cu_seqlens": borders, "cu_seqlens_padded": borders, "max_seqlen": int(inner.diff().max())}
    return tuple(x.flatten(0, 1) for x in (q, k, v)), told | dict(
        zip(OF_SLICES, (slice(0, batch * length), 1), strict=True)
    )


def called_with(layout: str) -> tuple[int, Iterable[str]]:
    """How many tensors a function in a layout is given, and by which words it is told more."""
    one = torch.zeros(1, 1, 1, 1)
    tensors, words = LAYOUTS[layout].arguments(one, one, one, ())
    return len(tensors), words


PACKED = ("thd", "varlen", "thd_whole")
"""Packed sequences; thd_whole: over ranks, where each is told of all of them."""
_VARLEN = Layout(  # out (T, H, D), lse (H, T)
    _packed_sequences,
    lambda out, batch: out.unflatten(0, (batch, -1)),
    lambda lse, batch: lse.unflatten(1, (batch, -1)).transpose(0, 1),
)
LAYOUTS = {
    "bshd": Layout(lambda q, k, v, _: ((q, k, v), {}), _same, _same),
    "bhsd": Layout(
        lambda *given: (tuple(x.transpose(1, 2).contiguous() for x in given[:3]), {}),
        lambda out, batch: out.transpose(1, 2),
        _same,
    ),
    "sbhd": Layout(
        lambda *given: (tuple(x.transpose(0, 1).contiguous() for x in given[:3]), {}),
        lambda out, batch: out.transpose(0, 1),
        _same,
    ),
    "kvpacked": Layout(lambda q, k, v, _: ((q, torch.stack((k, v), dim=2)), {}), _same, _same),
    "qkvpacked": Layout(lambda q, k, v, _: ((torch.stack((q, k, v), dim=2),), {}), _same, _same),
    **dict.fromkeys(PACKED, _VARLEN),
}

EXPECTED = "expected out or (out, lse)"


def returned(result: Any, layout: str, q: Tensor, width: int) -> tuple[Tensor, Tensor | None]:
    """out (B, S/W, H, width) and lse (B, H, S/W) or None, of what came in `layout` for q (B, S/W, H, D). Raises
    WrongResult."""
    values = result if isinstance(result, tuple | list) else (result,)
    if len(values) not in (1, 2):
        raise WrongResult(f"the function returned {len(values)} values, {EXPECTED}")
    out, lse = (*values, None)[:2]
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
    batch = q.shape[0]
    return LAYOUTS[layout].out(out, batch), None if lse is None else LAYOUTS[layout].lse(lse.detach(), batch)


def _shapes(layout: str, of_out: tuple[int, int, int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes in which a function returns out and lse. of_out: (B, S/W, H, width), out in our layout."""
    batch, length, heads, dim = of_out
    if layout in PACKED:
        return (batch * length, heads, dim), (heads, batch * length)
    out = {"bhsd": (batch, heads, length, dim), "sbhd": (length, batch, heads, dim)}
    return out.get(layout, (batch, length, heads, dim)), (batch, heads, length)


def _word(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _named(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__name__}".replace("builtins.", "")


CAPTURED = ("bshd", "bhsd", "sbhd", "thd")


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


def arranged(x: Tensor, layout: str) -> Tensor:
    """(B, S, heads, D) as a function takes it."""
    if layout == "bhsd":
        return x.transpose(1, 2).contiguous()
    return x.transpose(0, 1).contiguous() if layout == "sbhd" else x[0] if layout == "thd" else x
