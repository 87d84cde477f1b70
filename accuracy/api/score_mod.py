"""A score_mod of flex_attention as what the reference and the limits know: numbers added to scores, and a softcap.

What any other function of a score loses by its own rounding nobody can say from outside, so it has no limits.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from accuracy.core.errors import ConfigError, one_line
from accuracy.live.functions import everywhere

SCORES = (1.0, -3.0, 0.37, 40.0)
CAPPED = 1e9
"""A score at which every softcap has its largest value."""
ROUNDINGS = 8
"""Of float32, by which numbers that are added may be off in float32: twice the spacing, half of it the sum's own."""


def folded(score_mod: Callable[..., Any], q: Tensor, k: Tensor, seen: Tensor | None = None) -> dict[str, Any]:
    """Return `attn_mask` and `softcap`, as far as there are any, that do the same to scores.

    Args:
        score_mod: (score, item, head, query, key) -> score, of 0-dimensional tensors, as flex_attention takes it.
        q, k: (B, Sq, H, D) and (B, S, Hk, D).
        seen: (B or 1, H or 1, Sq, S), True where a query sees a key, beside it.

    Raises:
        ConfigError: where it does anything else than add numbers to scores, to softcap tanh(score / softcap) or hide
            keys, or adds other numbers in float32 than in float64.
    """
    sizes = q.shape[0], q.shape[2], q.shape[1], k.shape[1]

    def at(score: float, dtype: torch.dtype = torch.float64) -> Tensor:
        given = torch.tensor(score, dtype=dtype, device=q.device)
        return everywhere(lambda *place: score_mod(given, *place) + 0 * given, sizes, q.device).double()

    try:
        added, capped, short = at(0.0), at(CAPPED), at(0.0, torch.float32)
        others = {score: at(score) for score in SCORES}
    except Exception as error:  # a function of anyone's
        wanted = "a function of score, item, head, query and key, 0-dimensional tensors"
        raise ConfigError(f"score_mod is not {wanted} ({one_line(error)})") from None
    finite = added.isfinite()
    least = (capped - added)[finite].min() if finite.any() else added.new_tensor(CAPPED)
    softcap = None if least > CAPPED / 2 else float(least)
    for score, x in others.items():
        plain = score if softcap is None else softcap * torch.tensor(score / softcap, dtype=torch.float64).tanh()
        off = ((x - added)[finite] - plain).abs()
        allowed = 1e-12 * (abs(score) + added[finite].abs())
        if (softcap is not None and softcap <= 0) or (off > allowed).any() or (x[~finite] != added[~finite]).any():
            raise ConfigError(
                "score_mod does more than add to scores, cap them by tanh or hide keys, and limits are known of these"
                " alone; say by softmax_scale= or softcap= what these can, or compare with your own float64"
            )
    most = ROUNDINGS * 2.0**-24 * added[finite].abs()
    if ((short - added)[finite].abs() > most).any() or (short.isfinite() != finite).any():
        raise ConfigError(
            "score_mod adds other numbers in float32 than in float64; give these as attn_mask=, and the function too"
        )
    found: dict[str, Any] = {} if softcap is None else {"softcap": softcap}
    visible = finite if seen is None else finite & seen
    if bool((added[finite] != 0).any()):
        return found | {"attn_mask": added.masked_fill(~visible, -torch.inf)}
    return found if bool(visible.all()) else found | {"attn_mask": visible}
