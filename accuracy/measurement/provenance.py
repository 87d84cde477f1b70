"""Where a number comes from: code, versions, device, and every switch that changes arithmetic."""

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import accuracy
from accuracy.core import own_code, plugins
from accuracy.core.case import Case
from accuracy.core.paths import PACKAGE
from accuracy.runtime import arithmetic
from accuracy.runtime import device as devices
from accuracy.variant.base import schedule_of

if TYPE_CHECKING:
    from accuracy.config.read import Configuration

PACKAGES = (
    "torch", "numpy", "pandas", "pyarrow", "hydra-core", "omegaconf", "flash-attn", "flash-attn-4", "triton",
    "ring-flash-attn", "yunchang", "ring-attention-pytorch", "axolotl-ringmaster", "transformer_engine",
    "transformer_engine_torch",
)  # fmt: skip
CHANGE_NO_NUMBER = ("api", "chart", "cli", "experiments", "gate", "live", "report", "verdict")
"""Folders of this package that compose runs and read tables; a wheel has the experiments among them."""
DRIVER = Path("/proc/driver/nvidia/version")
# Variables that change results:
ARITHMETIC = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "NVTE_TORCH_COMPILE", "TRITON_INTERPRET")
ENVIRONMENT = (*ARITHMETIC, "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


@cache
def code_digest() -> str:
    """Return twelve hexadecimal digits of this package's sources that can change a measured number."""
    paths = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    counted = sorted(name for name in paths if name.partition(os.sep)[0] not in CHANGE_NO_NUMBER)
    content = b"".join(name.encode() + paths[name].read_bytes() for name in counted)
    return hashlib.sha256(content).hexdigest()[:12]


def code_of(case: Case) -> str:
    """Return the digest of the code that measures a case, joined by `+` with those of what is the user's: his own
    parts, the files that inputs are read from, and his function."""
    schedules = case.variant.forward, case.variant.backward
    sources = {plugins.module_of(part.source) for part in (case.inputs, case.kernel, *schedules)}
    own = _digest_of_parts(tuple(sorted(each for each in sources if not each.startswith("accuracy."))))
    found = code_digest(), own, plugins.read_digest(case.inputs), schedule_of(case.variant.forward).code(case)
    return "+".join(filter(None, found))


@cache
def _digest_of_parts(sources: tuple[str, ...]) -> str:
    files = {path for source in sources for path in own_code.files(plugins.load(source))}
    return own_code.digest([*files])[:12] if sources else ""


def fingerprint(device: str) -> dict[str, Any]:
    """Return what must be equal for rows of two runs to stand in one table."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    switches = arithmetic.switches()
    knobs: dict[str, Any] = {  # process-wide switches that change arithmetic
        "float32_matmul_precision": switches.float32_products,
        "threads": torch.get_num_threads() if device == "cpu" else None,
        **{name: os.environ[name] for name in ARITHMETIC if name in os.environ},
    }
    if device == "cuda":
        knobs |= {
            "allow_tf32": switches.tf32_products,
            "allow_bf16_reduced_precision_reduction": switches.reduced_bfloat16_sums,
            "allow_fp16_reduced_precision_reduction": switches.reduced_float16_sums,
        }
    return {
        "accuracy": accuracy.__version__,
        "code": code_digest(),
        "device": devices.name(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device == "cuda" else None,
        **{
            name: plugins.version(name.replace("_", "-")) if device == "cuda" else None
            for name in ("flash_attn", "flash_attn_4")
        },
        "triton": plugins.version("triton") if device == "cuda" or interpreted else None,
        "cudnn": torch.backends.cudnn.version() if device == "cuda" else None,
        "knobs": knobs,
    }


def provenance(device: str) -> dict[str, Any]:
    """Return the fingerprint, and what is only written down: commit and dirty flag of the checkout that the package
    runs from (outside one, a CI system's GIT_COMMIT), system, other packages."""
    git = "git", "-C", str(PACKAGE.parent)
    commit = command(*git, "rev-parse", "HEAD") if (PACKAGE.parent / ".git").exists() else ""
    changed = commit and command(*git, "status", "--porcelain", "--", "accuracy", "configs")
    return {
        **fingerprint(device),
        "git_commit": commit or os.environ.get("GIT_COMMIT"),
        "dirty": bool(changed) if commit else None,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "packages": {name: plugins.version(name) for name in PACKAGES},
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        **(_cuda() if device == "cuda" else {}),
    }


def of_functions(configuration: "Configuration") -> dict[str, Any]:
    """Return, for each function of a user's by name, the digest of its code and the repositories of its files."""
    grids = (configuration, *configuration.also)
    named = {str(dict(each.options)["fn"]) for grid in grids for each in grid.variants if "fn" in dict(each.options)}
    found = {name: plugins.load_function(name) for name in sorted(named)}
    return {
        name: {"code": each.code, "repositories": _repositories([path for path in each.files if own_code.is_own(path)])}
        for name, each in found.items()
    }


def _repositories(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the name, commit and dirty flag (a tracked file is not as committed, or one of these is not tracked) of
    each repository; files outside of any are one without a commit."""
    by_top: dict[Path | None, list[str]] = {}
    for path in (each.resolve() for each in files):
        top = next((folder for folder in path.parents if (folder / ".git").exists()), None)
        by_top.setdefault(top, []).append(str(path))
    found = []
    for top, own in by_top.items():
        git = ("git", "-C", str(top), "status", "--porcelain")
        changed = top and (command(*git, "--untracked-files=no") or command(*git, "--ignored", "--", *own))
        commit = top and (command("git", "-C", str(top), "rev-parse", "--verify", "HEAD") or None)
        dirty = None if top is None else bool(changed)
        found.append({"repository": top and top.name, "git_commit": commit, "dirty": dirty, "files": len(own)})
    return found


def command(*words: str) -> str:
    """Return what a command prints; nothing where it fails."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _cuda() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    driver = re.search(r"\b\d+\.\d+(\.\d+)?\b", DRIVER.read_text()) if DRIVER.exists() else None
    return {
        "compute_capability": f"{properties.major}.{properties.minor}",
        "device_memory_bytes": properties.total_memory,
        "device_count": torch.cuda.device_count(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else None,
        "driver": driver[0] if driver else "",
    }
