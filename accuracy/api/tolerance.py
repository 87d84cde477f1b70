"""`accuracy.tolerance`: which tolerance should a test of attention use, and what does it still catch?"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from accuracy.bound import advise
from accuracy.config import find
from accuracy.config.find import complete_part
from accuracy.core.case import Problem
from accuracy.core.dtype import ALIASES, FORMATS
from accuracy.core.errors import ConfigError, entry, unknown
from accuracy.runtime import arithmetic
from accuracy.runtime import device as devices

MASKS = ("causal", "full")
MOST_SCORES = 2**31


@entry()
def tolerance(
    q_shape: Sequence[int], dtype: Any, *, keys: int | None = None, heads_kv: int | None = None,
    inputs: str = "gaussian", kernel: str | Sequence[str] | None = None, mask: str = "causal",
    softmax_scale: float | None = None, against: str = "float64", seeds: int = 8, device: str = "auto",
) -> pd.DataFrame:  # fmt: skip
    """Tolerances of a test that compares attention with float64 (or, against="float32", with float32) on its inputs.

    q_shape: (B, Sq, H, D); keys: S, default Sq; heads_kv: Hk, default H; dtype: by name or torch's; inputs: a
    distribution by name; kernel: names of those that must pass, default every healthy one that runs here and attention
    that keeps everything in its dtype; mask: causal or full; seeds: measured to set the bounds, and as many again to
    count false alarms.

    Returns a row for each of out, lse, dq, dk and dv, with columns as in `accuracy.bound.advise.Advice`: atol and
    rtol, relative, row_rms; runs, false_alarms, at_most (3 / runs where there were none); least_factor,
    least_factor_elements, zeros, shifted: the planted faults that are noticed. Raises ConfigError, a
    ValueError, for a wrong argument.
    """
    word = str(dtype).removeprefix("torch.")
    word = ALIASES.get(word, word)
    allowed = {"dtype": FORMATS, "mask": MASKS, "against": advise.REFERENCES}
    for name, value in {"dtype": word, "mask": mask, "against": against}.items():
        if value not in allowed[name]:
            raise unknown(name, value, allowed[name])
    problem = _problem(q_shape, keys, heads_kv, mask, softmax_scale)
    if type(seeds) is not int or not 1 <= seeds <= 1000:
        raise ConfigError(f"seeds={seeds!r}; allowed: whole numbers from 1 to 1000")
    drawn = complete_part("inputs", find.part("inputs", inputs), strict=False)
    device = devices.choose(device)
    names = None if kernel is None else [kernel] if isinstance(kernel, str) else list(kernel)
    with arithmetic.exact():
        chosen = (find.part("kernel", name, ()) for name in names or advise.ANY)
        parts = {part.name: complete_part("kernel", part, strict=False) for part in chosen}
        kernels = advise.healthy(names, parts.__getitem__, problem, word, device)
        for name, each in zip(names or (), kernels, strict=bool(names)):
            if reason := advise.unable(name, each, problem, word, device):
                raise ConfigError(f"{reason}; leave kernel away for all that run here")
        found = advise.advise(advise.Setting(problem, word, drawn, kernels, against, device), seeds)
    return pd.DataFrame([asdict(each) for each in found])


def _problem(q_shape: Sequence[int], keys: int | None, heads_kv: int | None, mask: str, scale: float | None) -> Problem:
    try:
        batch, queries, heads, dim = sizes = [*q_shape]
    except (TypeError, ValueError):
        raise ConfigError(f"q_shape={q_shape!r}; give (batch, tokens, heads, head dim)") from None
    keys, heads_kv = (own if size is None else size for size, own in ((keys, queries), (heads_kv, heads)))
    if not all(type(size) is int and 0 < size < MOST_SCORES for size in (*sizes, keys, heads_kv)):
        given = f"q_shape={tuple(sizes)}, keys={keys}, heads_kv={heads_kv}"
        raise ConfigError(f"{given}; allowed: whole numbers from 1 to {MOST_SCORES - 1:,}")
    if heads % heads_kv:
        raise ConfigError(f"heads_kv={heads_kv}; allowed: what divides {heads} heads")
    if mask == "causal" and keys < queries:
        raise ConfigError(f"keys={keys} with mask='causal'; allowed: at least as many as queries, {queries}")
    if scale is not None and not (isinstance(scale, (int, float)) and 0 < scale < math.inf):
        raise ConfigError(f"softmax_scale={scale!r}; allowed: numbers above 0")
    own = None if queries == keys else queries
    problem = Problem(batch, keys, heads, heads_kv, dim, mask, dim**-0.5 if scale is None else scale, own)
    for what, number in (("scores", problem.pairs), ("elements", batch * max(keys, queries) * heads * dim)):
        if number > MOST_SCORES:
            raise ConfigError(
                f"{number:,} {what} are too many (allowed: {MOST_SCORES:,}); ask for fewer heads or tokens"
            )
    return problem
