"""Where a number comes from: code, versions, device, and every switch that changes arithmetic."""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import accuracy
from accuracy.core import plugins
from accuracy.core.case import Case
from accuracy.runtime import device as devices

PACKAGE = Path(accuracy.__file__).parent
PACKAGES = ("torch", "numpy", "pandas", "pyarrow", "hydra-core", "omegaconf", "flash-attn", "flash-attn-4", "triton")
THIRD_PARTY = ("ring-flash-attn", "yunchang", "ring-attention-pytorch", "axolotl-ringmaster")
NOT_MEASURING = (  # what these decide is in the case's id, or nowhere in a number; whatever is new decides
    "api/", "chart/", "cli/", "config/", "execute/", "gate/", "probe/", "report/", "verdict/", "selfcheck/measure.py",
    "selfcheck/rates.py", "selfcheck/vacuity.py", "results/", "measure/memory.py", "measure/provenance.py",
)  # fmt: skip
ARITHMETIC = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TRITON_INTERPRET")  # variables that change results
ENVIRONMENT = (*ARITHMETIC, "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


@cache
def code_digest() -> str:
    """Twelve hexadecimal digits of the sources that decide a measured number (not of reports and commands)."""
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    content = hashlib.sha256()
    for name, path in sorted(paths.items()):
        if not name.startswith(NOT_MEASURING):
            content.update(name.encode() + path.read_bytes())
    return content.hexdigest()[:12]


def code_of(case: Case) -> str:
    """The package's digest and, where parts of the case lie outside of it, `+` and what tells those apart."""
    schedules = case.variant.forward, case.variant.backward
    sources = sorted({part.source for part in (case.inputs, case.kernel, *schedules)})
    own = [source for source in sources if not source.startswith("accuracy.")]
    texts = [
        code_digest(),
        *([_files_digest(tuple(own))] if own else []),
        *filter(None, [plugins.read_digest(case.inputs)]),
    ]
    says = getattr(plugins.load(case.variant.forward.source), "code", None)
    return "+".join([*texts, *([says(case)] if says else [])])


@cache
def _files_digest(sources: tuple[str, ...]) -> str:
    content = b"".join(Path(str(plugins.load(source).__file__)).read_bytes() for source in sources)
    return hashlib.sha256(content).hexdigest()[:8]


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
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads() if device == "cpu" else None,
        **{name: os.environ[name] for name in ARITHMETIC if name in os.environ},
    }
    if device == "cuda":
        matmul = torch.backends.cuda.matmul
        switches |= {
            "allow_tf32": matmul.allow_tf32,
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
        "driver": _command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0],
    }


def _git() -> dict[str, Any]:
    """Commit and dirty flag of the checkout that the package runs from; outside one, a CI system's GIT_COMMIT."""
    commit = (PACKAGE.parent / ".git").exists() and _command("git", "-C", str(PACKAGE.parent), "rev-parse", "HEAD")
    if not commit:
        return {"git_commit": os.environ.get("GIT_COMMIT"), "dirty": None}
    changed = _command("git", "-C", str(PACKAGE.parent), "status", "--porcelain", "--", "accuracy", "configs")
    return {"git_commit": commit, "dirty": bool(changed)}


def _command(*words: str) -> str:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
