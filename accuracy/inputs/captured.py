"""q, k, v and dout of a model: of `accuracy.capture`'s folder, or of a safetensors file, by default of a tiny trained
language model, shipped here.

Of a folder, `layer` names a call, LAYER or LAYER@STEP, whose ranks are joined to whole sequences. A file holds
`LAYER.q`, `LAYER.dout` (B, S, H, D), `LAYER.k`, `LAYER.v` (B, S, Hk, D): q and k as they enter the scores (after RoPE),
dout the gradient of a loss. A problem has its heads and head dim, and takes its first sequences and tokens.
`git show 4ec7d95:experiments/inputs_that_matter/train.py` prints what made the shipped file.
"""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from accuracy.core.case import Case
from accuracy.core.recording import AT, Recorded, choose
from accuracy.runtime.sharding import join

SHIPPED = Path(__file__).with_suffix(".safetensors")
NAMES = ("q", "k", "v", "dout")


@dataclass(frozen=True)
class Options:
    """path: of a capture's folder or of a safetensors file, empty for the shipped one; layer: which call of a
    folder, or what stands before `.q` in the names of a file's tensors."""

    path: str = ""
    layer: str = "layer_0"

    def __post_init__(self) -> None:
        _shapes(self.file, self.layer, _version(self.file))

    @property
    def file(self) -> Path:
        """The file that is meant."""
        return Path(self.path).expanduser() if self.path else SHIPPED


def unsupported(case: Case, options: Options) -> str | None:
    """Why the file has no inputs for a case, or None."""
    problem, shapes = case.problem, _shapes(options.file, options.layer, _version(options.file))
    (batch, queries, heads, width), (_, length, heads_kv, _), value = shapes["q"], shapes["k"], shapes["v"][3]
    own = {
        "heads": heads, "heads_kv": heads_kv, "head_dim": width, "head_dim_v": None if value == width else value,
        "seqlen_q": None if queries == length else queries,
    }  # fmt: skip
    for name, held in own.items():
        if (given := getattr(problem, name)) != held:
            word = "null" if held is None else held
            return f"inputs captured have problem.{name}={word}, not {given}; use that, or leave problem to the capture"
    for name, least, most in (("batch", 1, batch), ("seqlen", 1 if queries == length else length, length)):
        if not least <= (given := getattr(problem, name)) <= most:
            return f"inputs captured have no problem.{name}={given}; allowed: {least} to {most}"
    return None if case.seed == 0 else f"inputs captured are one sample, there is no seed={case.seed}; allowed: 0"


def code(options: Options) -> str:
    """Eight digits of the file's SHA-256."""
    if options.file.is_dir():
        files = choose(options.file, options.layer).files
        return hashlib.sha256("".join(_digest(path, _version(path)) for path in files).encode()).hexdigest()[:8]
    return _digest(options.file, _version(options.file))


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """float64, shape (B, S, heads, D): the beginning of what the file holds. Raises ValueError."""
    name = f"{options.layer.partition(AT)[0]}.{tensor}"
    if options.file.is_dir():
        values = _joined(choose(options.file, options.layer), name)[: shape[0], : shape[1]].double()
    else:
        with _opened(options.file) as file:
            values = file.get_slice(name)[: shape[0], : shape[1]].double()
    if values.shape != shape:
        raise ValueError(f"{name} in {options.file} is {tuple(values.shape)} at most, not {shape}")
    if not values.isfinite().all():
        raise ValueError(f"{name} in {options.file} holds values that are not finite")
    return np.asarray(values.numpy())


def _joined(found: Recorded, name: str) -> torch.Tensor:
    """A tensor of all ranks, (B, S, heads, D)."""
    shards = []
    for path in found.files:
        with _opened(path) as file:
            shards.append(file.get_tensor(name))
    return join(torch.stack(shards), found.first.cut)


Version = tuple[int, ...]
"""What changes with a file's content, so that a path that has become another file is read again."""


def _version(path: Path) -> Version:
    """Nothing of a file that is not there: opening it says so."""
    with suppress(OSError):
        about = os.stat(path)
        return about.st_ino, about.st_size, about.st_mtime_ns
    return ()


@cache
def _shapes(path: Path, layer: str, version: Version) -> dict[str, tuple[int, ...]]:
    if path.is_dir():
        return _shapes_of_capture(path, layer)
    with _opened(path) as file:
        found = set(file.keys())
        missing = [f"{layer}.{name}" for name in NAMES if f"{layer}.{name}" not in found]
        if missing:
            layers = sorted(name.removesuffix(".q") for name in found if name.endswith(".q"))
            allowed = ", ".join(layers[:8]) or "tensors called LAYER.q, .k, .v, .dout"
            raise ValueError(f"layer={layer}: {path} lacks {', '.join(missing)}; allowed: {allowed}")
        shapes = {name: tuple(file.get_slice(f"{layer}.{name}").get_shape()) for name in NAMES}
    q, k = shapes["q"], shapes["k"]
    fit = len(q) == len(k) == 4 and 0 not in q + k and shapes["dout"] == q and shapes["v"] == k
    if not fit or (q[0], q[1], q[3]) != (k[0], k[1], k[3]) or q[2] % k[2]:
        given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(f"{path}: {given}; allowed: q and dout (B, S, H, D), k and v (B, S, Hk, D), Hk a divisor of H")
    return shapes


def _shapes_of_capture(folder: Path, layer: str) -> dict[str, tuple[int, ...]]:
    found = choose(folder, layer)
    facts, ranks = found.first, len(found.files)
    if "dout" not in facts.shapes:
        raise ValueError(f"{facts.name} in {folder} has no gradients, so no dout; capture a step with its backward")
    return {name: (batch, ranks * length, *rest) for name in NAMES for batch, length, *rest in [facts.shapes[name]]}


def _opened(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"path={path} is no file; allowed: a safetensors file, or empty for the shipped one")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"path={path} cannot be read as safetensors ({' '.join(str(error).split())})") from error


@cache
def _digest(path: Path, version: Version) -> str:
    with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return hashlib.sha256(content).hexdigest()[:8]
