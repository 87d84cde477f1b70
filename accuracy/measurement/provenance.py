"""Where a number comes from: code, versions, device, and every switch that changes arithmetic."""

import importlib.metadata
import os
import platform
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import accuracy
from accuracy.core import own_code, plugins
from accuracy.core.case import Case
from accuracy.core.closure import closure, digest_of
from accuracy.measurement.repository import command
from accuracy.runtime import arithmetic
from accuracy.runtime import device as devices
from accuracy.variant.base import schedule_of

PACKAGE = Path(accuracy.__file__).parent
PACKAGES = ("torch", "numpy", "pandas", "pyarrow", "hydra-core", "omegaconf", "flash-attn", "flash-attn-4", "triton")
THIRD_PARTY = (
    "ring-flash-attn", "yunchang", "ring-attention-pytorch", "axolotl-ringmaster", "transformer_engine",
    "transformer_engine_torch",
)  # fmt: skip
MEASURING, MEASURING_STACKS = "accuracy.measurement.pipeline", "accuracy.stack.measure"
CHOICES = ("inputs", "kernel", "variant", "package")  # folders of which a case loads some modules
DRIVER = Path("/proc/driver/nvidia/version")
ARITHMETIC = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TRITON_INTERPRET")  # variables that change results
ENVIRONMENT = (*ARITHMETIC, "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


@cache
def code_digest() -> str:
    """Twelve hexadecimal digits of the sources that can decide a measured number, whatever the case."""
    files = (path for kind in CHOICES for path in (PACKAGE / kind).glob("*.py"))
    return _digest((MEASURING, MEASURING_STACKS, *sorted(f"accuracy.{path.parent.name}.{path.stem}" for path in files)))


def code_of(case: Case) -> str:
    """Digest of the sources that this case's numbers depend on: what measures, the case's parts, and all that they
    import of this package and, a user's own parts, of his modules. After a `+`: what else a part reads, as it says."""
    schedules = case.variant.forward, case.variant.backward
    measuring = MEASURING if case.stack is None else MEASURING_STACKS
    sources = sorted({plugins.module_of(part.source) for part in (case.inputs, case.kernel, *schedules)})
    own = schedule_of(case.variant.forward).code(case)
    return "+".join(filter(None, [_digest((measuring, *sources)), plugins.read_digest(case.inputs), own]))


@cache
def _digest(modules: tuple[str, ...]) -> str:
    own = closure([name for name in modules if not name.startswith("accuracy.")], own_code.is_own_name)
    return digest_of(closure([*modules, *own]))[:12]


def fingerprint(device: str) -> dict[str, Any]:
    """What must be equal for rows of two runs to stand in one table."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return {
        "accuracy": accuracy.__version__,
        "code": code_digest(),
        "device": devices.name(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device == "cuda" else None,
        "flash_attn": _version("flash-attn") if device == "cuda" else None,
        "flash_attn_4": _version("flash-attn-4") if device == "cuda" else None,
        "triton": _version("triton") if device == "cuda" or interpreted else None,
        "cudnn": torch.backends.cudnn.version() if device == "cuda" else None,
        "knobs": knobs(device),
    }


def provenance(device: str) -> dict[str, Any]:
    """The fingerprint, and what is only written down: git, system, other packages."""
    return {
        **fingerprint(device),
        **_git(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "packages": {name: _version(name) for name in (*PACKAGES, *THIRD_PARTY)},
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        **(_cuda() if device == "cuda" else {}),
    }


def knobs(device: str) -> dict[str, Any]:
    """Process-wide switches that change arithmetic."""
    switches: dict[str, Any] = {
        "float32_matmul_precision": arithmetic.switches().float32_products,
        "threads": torch.get_num_threads() if device == "cpu" else None,
        **{name: os.environ[name] for name in ARITHMETIC if name in os.environ},
    }
    if device == "cuda":
        matmul = torch.backends.cuda.matmul
        switches |= {
            "allow_tf32": arithmetic.switches().tf32_products,
            "allow_bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
            "allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        }
    return switches


def _cuda() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "compute_capability": f"{properties.major}.{properties.minor}",
        "device_memory_bytes": properties.total_memory,
        "device_count": torch.cuda.device_count(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else None,
        "driver": _driver(),
    }


def _driver() -> str:
    """Version of the GPU's driver: asked of the kernel, for `nvidia-smi` takes its time."""
    with suppress(OSError):
        if found := re.search(r"\b\d+\.\d+(\.\d+)?\b", DRIVER.read_text()):
            return found[0]
    return command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]


def _git() -> dict[str, Any]:
    """Commit and dirty flag of the checkout that the package runs from; outside one, a CI system's GIT_COMMIT."""
    if not (PACKAGE.parent / ".git").exists():
        return {"git_commit": os.environ.get("GIT_COMMIT"), "dirty": None}
    commit = command("git", "-C", str(PACKAGE.parent), "rev-parse", "HEAD")
    changed = command("git", "-C", str(PACKAGE.parent), "status", "--porcelain", "--", "accuracy", "configs")
    return {"git_commit": commit or os.environ.get("GIT_COMMIT"), "dirty": bool(changed) if commit else None}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
