"""References kept on disk, so that a problem's reference is computed once, whatever runs ask for it.

A file is written whole or not at all and carries a checksum; one that cannot be read is computed again.
"""

import hashlib
import time
import warnings
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from accuracy.core import plugins
from accuracy.core.case import Part, Problem, digest
from accuracy.core.paths import whole_file
from accuracy.inputs.drawing import Inputs
from accuracy.reference import choice
from accuracy.reference.float64 import Reference
from accuracy.runtime import dropout


@dataclass(frozen=True)
class Cache:
    """folder: where references are kept; None: nowhere. min_seconds: how long a reference must take to be kept. method:
    auto, fused or torch."""

    folder: Path | None
    min_seconds: float
    method: str = "auto"

    def reference(self, problem: Problem, part: Part, seed: int, dtype: str, inputs: Inputs) -> Reference:
        """The reference of a problem's inputs, from disk or computed."""
        method = self.method_for(problem, inputs.q.device.type)
        if self.folder is None:
            return choice.compute(method, problem, inputs, seed)
        key = _key(method, problem, part, seed, dtype, inputs)
        path = self.folder / f"{key}.npz"
        found = _read(path, inputs.q.device)
        if found is not None:
            return found
        begin = time.perf_counter()
        reference = choice.compute(method, problem, inputs, seed)
        if reference.out.is_cuda:
            torch.cuda.synchronize()
        if time.perf_counter() - begin >= self.min_seconds:
            try:
                _write(path, reference)
            except OSError as error:  # a full disk costs the next run's time, not this run's case
                warnings.warn(f"reference not kept in {self.folder}: {error}", stacklevel=2)
        return reference

    def method_for(self, problem: Problem, device: str) -> str:
        """Which code computes a problem's reference on a device: fused or torch."""
        return choice.choose(problem, device, self.method)


def _key(method: str, problem: Problem, part: Part, seed: int, dtype: str, inputs: Inputs) -> str:
    """Names what the reference depends on, and the library and code that compute it: everything in this folder, and the
    mask of a dropout."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(dropout.__file__)]
    code = b"".join(each.read_bytes() for each in files)
    content = {
        "problem": asdict(problem),
        "inputs": (part.name, part.options_text, _source_digest(part)),
        "seed": seed,
        "dtype": dtype,
        "device": inputs.q.device.type,
        "torch": torch.__version__,
        "method": method,
        "code": hashlib.sha256(code).hexdigest(),
    }
    return digest(content)[:24]


def _source_digest(part: Part) -> str:
    module = plugins.load(plugins.module_of(part.source))
    return hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest() + plugins.read_digest(part)


def _write(path: Path, reference: Reference) -> None:
    arrays = {field.name: getattr(reference, field.name).cpu().numpy() for field in fields(reference)}
    with whole_file(path) as handle:
        np.savez(handle, **arrays)  # a zip file: every member has a CRC that reading checks


def _read(path: Path, device: torch.device) -> Reference | None:
    if not path.exists():
        return None
    try:
        with np.load(path) as arrays:
            return Reference(
                **{each.name: torch.from_numpy(arrays[each.name]).to(device) for each in fields(Reference)}
            )
    except Exception:  # any damage means the same: compute it again
        return None
