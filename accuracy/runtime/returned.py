"""What did a user's function return? out and lse as our layout has them, or one sentence on what they are instead."""

from typing import Any

from torch import Tensor

from accuracy.core.errors import WrongResult
from accuracy.runtime.layout import LAYOUTS

EXPECTED = "expected out or (out, lse)"


def read(result: Any, layout: str, q: Tensor) -> tuple[Tensor, Tensor | None]:
    """out (B, S/W, H, D) and lse (B, H, S/W) or None, of what came in `layout` for q (B, S/W, H, D). Raises
    WrongResult."""
    values = result if isinstance(result, tuple | list) else (result,)
    if len(values) not in (1, 2):
        raise WrongResult(f"the function returned {len(values)} values, {EXPECTED}")
    out, lse = (*values, None)[:2]
    if not isinstance(out, Tensor):
        raise WrongResult(f"the function returned {_named(out)}, {EXPECTED}")
    if lse is not None and not isinstance(lse, Tensor):
        raise WrongResult(f"lse came as {_named(lse)}, expected a tensor or None")
    shape_of_out, shape_of_lse = _shapes(layout, q)
    for name, x, shape in (("out", out, shape_of_out), ("lse", lse, shape_of_lse)):
        if x is not None and tuple(x.shape) != shape:
            swapped = layout != "varlen" and x.dim() > 2 and tuple(x.transpose(1, 2).shape) == shape
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


def _shapes(layout: str, q: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of out and of lse as the function sees them."""
    batch, length, heads, dim = q.shape
    if layout == "varlen":
        return (batch * length, heads, dim), (heads, batch * length)
    out = (batch, heads, length, dim) if layout == "bhsd" else (batch, length, heads, dim)
    return out, (batch, heads, length)


def _word(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _named(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__name__}".replace("builtins.", "")
