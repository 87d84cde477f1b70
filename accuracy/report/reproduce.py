"""Which command measures this row again? Built from the row's own columns, quoted for a POSIX shell."""

import math
import shlex
from collections.abc import Mapping
from typing import Any

from accuracy.core.number import as_float

_CHOICES = ("variant", "dtype", "world_size", "seed", "kernel", "inputs")
_PROBLEM = ("batch", "seqlen", "heads", "heads_kv", "head_dim")
_DEFAULT_WORLD = "simulated"


def command(row: Mapping[Any, Any]) -> str:
    """`accuracy variant=ring dtype=bfloat16 ...` for one row of the results table; missing columns are
    left out.
    """
    words = [f"{name}={_text(row[name])}" for name in _CHOICES if _present(row.get(name))]
    if _present(row.get("world")) and row["world"] != _DEFAULT_WORLD:
        words.append(f"world={_text(row['world'])}")
    words += [f"problem.{name}={_text(row[name])}" for name in _PROBLEM if _present(row.get(name))]
    words += _mask(row)
    words += _other_length(row)
    words += _softmax_scale(row)
    words += [f"problem.softcap={_text(row['softcap'])}"] if (as_float(row.get("softcap")) or 0) > 0 else []
    words += _knobs(f"variant.{row.get('variant')}", row.get("options"))
    words += _knobs("precision", row.get("precision"))
    words += _knobs(f"kernel.{row.get('kernel')}", row.get("kernel_options"))
    words += _knobs(f"inputs.{row.get('inputs')}", row.get("inputs_options"))
    return shlex.join(["accuracy", *words])


def _mask(row: Mapping[Any, Any]) -> list[str]:
    """`causal,window=128` as an override for the mask and one for each setting of it."""
    mask, *settings = str(row["mask"]).split(",") if _present(row.get("mask")) else [""]
    return [f"problem.mask={mask}", *(f"problem.{setting}" for setting in settings)] if mask else []


def _other_length(row: Mapping[Any, Any]) -> list[str]:
    """The number of queries, where it is not that of the keys."""
    queries = row.get("seqlen_q")
    return [f"problem.seqlen_q={_text(queries)}"] if _present(queries) and queries != row.get("seqlen") else []


def _softmax_scale(row: Mapping[Any, Any]) -> list[str]:
    """Only where it is not the default 1 / sqrt(head_dim)."""
    scale, head_dim = as_float(row.get("softmax_scale")), as_float(row.get("head_dim"))
    if math.isnan(scale) or not head_dim > 0 or math.isclose(scale, head_dim**-0.5, rel_tol=1e-9):
        return []
    return [f"problem.softmax_scale={scale!r}"]


def _knobs(prefix: str, options: object) -> list[str]:
    """`key_chunk=64,query_chunk=128` as one override each."""
    if not isinstance(options, str) or not options:
        return []
    pairs: list[str] = []
    for piece in options.split(","):
        if "=" in piece or not pairs:
            pairs.append(piece)
        else:  # a comma inside a value
            pairs[-1] += f",{piece}"
    return [f"{prefix}.{pair.removesuffix('=None')}{'=null' if pair.endswith('=None') else ''}" for pair in pairs]


def _present(value: object) -> bool:
    return value is not None and value == value and value != ""


def _text(value: object) -> str:
    """Integer columns with a missing value elsewhere arrive as floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
