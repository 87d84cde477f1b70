"""A problem out of its configuration: what is given is checked, what is left out is filled in, equal ones are one."""

import math
from typing import Any

from accuracy.config.read import MASKS
from accuracy.core.case import Problem, default_softmax_scale
from accuracy.core.errors import ConfigError, unknown


def problem_of(given: dict[str, Any]) -> Problem:
    """A checked problem; seqlen_q null means seqlen, heads_kv null heads, softmax_scale null 1/sqrt(head_dim)."""
    for key in ("batch", "seqlen", "heads", "head_dim"):
        if not isinstance(given[key], int) or isinstance(given[key], bool) or given[key] < 1:
            raise ConfigError(f"problem.{key}={given[key]!r}; allowed: whole numbers from 1")
    if given["mask"] not in MASKS:
        raise unknown("problem.mask", given["mask"], MASKS)
    heads, heads_kv = given["heads"], given["heads_kv"]
    heads_kv = heads if heads_kv is None else heads_kv
    if not isinstance(heads_kv, int) or isinstance(heads_kv, bool) or heads_kv < 1 or heads % heads_kv:
        divisors = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ConfigError(f"problem.heads_kv={heads_kv} does not divide problem.heads={heads}; allowed: {divisors}")
    scale = given["softmax_scale"]
    scale = default_softmax_scale(given["head_dim"]) if scale is None else scale
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise ConfigError(f"problem.softmax_scale={scale!r}; allowed: a number above 0, or null for 1/sqrt(head_dim)")
    return Problem(
        given["batch"], given["seqlen"], heads, heads_kv, given["head_dim"], _mask(given), float(scale),
        _other_length(given), _window(given), _documents(given), _softcap(given),
    )  # fmt: skip


def _mask(given: dict[str, Any]) -> str:
    """With as many queries as keys both alignments are one."""
    mask: str = given["mask"]
    return "causal" if mask == "causal_top_left" and _other_length(given) is None else mask


def _window(given: dict[str, Any]) -> int | None:
    """Keys to either side; as many as there are keys, or more, is no window."""
    window = given.get("window")
    if window is None:
        return None
    if type(window) is not int or window < 0:
        raise ConfigError(f"problem.window={window!r}; allowed: whole numbers from 0, or null for no window")
    if given["mask"] == "causal_top_left" and _other_length(given) is not None:
        raise ConfigError(
            "problem.window has no problem.mask=causal_top_left: some queries would see no key; use causal"
        )
    if given["mask"] == "full" and _other_length(given) is not None:
        raise ConfigError("problem.window with problem.mask=full needs as many queries as keys: problem.seqlen_q=null")
    return window if window < given["seqlen"] - 1 else None


def _documents(given: dict[str, Any]) -> tuple[int, ...]:
    """`100+412` as lengths; one document is none packed."""
    text, keys = given.get("documents"), given["seqlen"]
    if text is None:
        return ()
    lengths = tuple(int(word) if word.isdecimal() else 0 for word in str(text).split("+"))
    if min(lengths) < 1 or sum(lengths) != keys:
        raise ConfigError(
            f"problem.documents={text!r}; allowed: lengths from 1, joined by +, that sum to problem.seqlen={keys},"
            f" as {keys - keys // 3}+{keys // 3}, or null"
        )
    if _other_length(given) is not None:
        raise ConfigError("problem.documents needs as many queries as keys: problem.seqlen_q=null")
    return lengths if len(lengths) > 1 else ()


def _softcap(given: dict[str, Any]) -> float | None:
    softcap = given.get("softcap")
    if softcap is None:
        return None
    if isinstance(softcap, bool) or not isinstance(softcap, int | float) or not 0 < softcap < math.inf:
        raise ConfigError(f"problem.softcap={softcap!r}; allowed: a number above 0, or null for none")
    return float(softcap)


def _other_length(given: dict[str, Any]) -> int | None:
    """The number of queries where it is not the number of keys."""
    queries, keys = given.get("seqlen_q"), given["seqlen"]
    if queries is None or (type(queries) is int and queries == keys):
        return None
    if type(queries) is not int or queries < 1:
        raise ConfigError(f"problem.seqlen_q={queries!r}; allowed: whole numbers from 1, or null for problem.seqlen")
    if given["mask"] == "causal" and queries > keys:
        raise ConfigError(
            f"problem.seqlen_q={queries} is above problem.seqlen={keys}: under a causal mask the first queries"
            f" would see no key; allowed: 1 to {keys}, or problem.mask=full"
        )
    return queries
