"""q, k, v and dout of a trained model, read from a safetensors file: by default of a tiny language model, shipped here.

A file holds `LAYER.q`, `LAYER.dout` (B, S, H, D) and `LAYER.k`, `LAYER.v` (B, S, Hk, D), of the same B, S and D: q
and k as they enter the scores (after RoPE), dout the gradient of a loss with respect to the attention's output. A
problem has the file's heads, key/value heads and head dim, and takes the first of its sequences and tokens: at most
as many as there are. Nothing in it is random, so it has seed 0 alone. `experiments/inputs_that_matter/train.py` made
the shipped file.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from accuracy.core.case import Case

SHIPPED = Path(__file__).with_suffix(".safetensors")
NAMES = ("q", "k", "v", "dout")
DTYPES = ("F16", "BF16", "F32", "F64")


@dataclass(frozen=True)
class Options:
    """path: of a safetensors file, empty for the shipped one; layer: what stands before `.q` in its tensors' names."""

    path: str = ""
    layer: str = "layer_0"

    def __post_init__(self) -> None:
        """Raises ValueError."""
        _shapes(self.file, self.layer)

    @property
    def file(self) -> Path:
        """The file that is meant."""
        return Path(self.path).expanduser() if self.path else SHIPPED


def unsupported(case: Case, options: Options) -> str | None:
    """Why the file has no inputs for a case, or None."""
    problem, shapes = case.problem, _shapes(options.file, options.layer)
    batch, length, heads, head_dim = shapes["q"]
    heads_kv = shapes["k"][2]
    if (problem.heads, problem.heads_kv, problem.head_dim) != (heads, heads_kv, head_dim):
        return (
            f"inputs captured have problem.heads={heads} problem.heads_kv={heads_kv} problem.head_dim={head_dim}, not"
            f" {problem.heads}, {problem.heads_kv} and {problem.head_dim}; use those"
        )
    for name, given, most in (("batch", problem.batch, batch), ("seqlen", problem.seqlen, length)):
        if given > most:
            return f"inputs captured have no problem.{name}={given}; allowed: 1 to {most}"
    if problem.queries != problem.seqlen:
        return "inputs captured have as many queries as keys: drop problem.seqlen_q"
    return None if case.seed == 0 else f"inputs captured are one sample, there is no seed={case.seed}; allowed: 0"


def code(options: Options) -> str:
    """What tells one file's content from another's."""
    return _digest(options.file)


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """float64, shape (B, S, heads, D): the beginning of what the file holds. Raises ValueError."""
    name = f"{options.layer}.{tensor}"
    with _opened(options.file) as file:
        values = file.get_slice(name)[: shape[0], : shape[1]].double()
    if values.shape != shape:
        raise ValueError(f"{name} in {options.file} is {tuple(values.shape)} at most, not {shape}")
    if not values.isfinite().all():
        raise ValueError(f"{name} in {options.file} holds values that are not finite")
    return np.asarray(values.numpy())


@cache
def _shapes(path: Path, layer: str) -> dict[str, tuple[int, ...]]:
    """Of the layer's tensors, which fit each other. Raises ValueError."""
    with _opened(path) as file:
        found = set(file.keys())
        missing = [f"{layer}.{name}" for name in NAMES if f"{layer}.{name}" not in found]
        if missing:
            raise ValueError(f"layer={layer}: {path} lacks {', '.join(missing)}; {_layers(found)}")
        slices = {name: file.get_slice(f"{layer}.{name}") for name in NAMES}
        dtypes = {name: each.get_dtype() for name, each in slices.items()}
        shapes = {name: tuple(each.get_shape()) for name, each in slices.items()}
    wrong = [f"{layer}.{name} is {dtype}" for name, dtype in dtypes.items() if dtype not in DTYPES]
    if wrong:
        raise ValueError(f"{path}: {', '.join(wrong)}; allowed: {', '.join(DTYPES)}")
    if not _fit(shapes):
        given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(f"{path}: {given}; allowed: q and dout (B, S, H, D), k and v (B, S, Hk, D), Hk a divisor of H")
    return shapes


def _fit(shapes: dict[str, tuple[int, ...]]) -> bool:
    q, k, v, dout = (shapes[name] for name in NAMES)
    if len(q) != 4 or len(k) != 4 or 0 in q + k or dout != q or v != k:
        return False
    return (q[0], q[1], q[3]) == (k[0], k[1], k[3]) and q[2] % k[2] == 0


def _layers(names: Sequence[str] | set[str]) -> str:
    """What could be given for `layer`."""
    layers = sorted({name.removesuffix(".q") for name in names if name.endswith(".q")})
    return f"allowed: {', '.join(layers[:8])}" if layers else "its tensors are to be called LAYER.q, .k, .v, .dout"


def _opened(path: Path) -> Any:
    """Raises ValueError where there is no such file, or another kind of file."""
    if not path.is_file():
        raise ValueError(f"path={path} is no file; allowed: a safetensors file, or empty for the shipped one")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        text = " ".join(str(error).split())
        raise ValueError(f"path={path} cannot be read as safetensors ({text})") from error


@cache
def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        content = hashlib.sha256()
        while part := file.read(2**20):
            content.update(part)
    return content.hexdigest()[:8]
