"""On what was it measured, and may two runs be compared? Hard: other numbers are to be expected. Soft: a warning. What
belongs to a single cell (variant, kernel, dtype, world kind and size, problem, inputs) is in the cell's own key,
`cell.KEYS`. The package's version and code are in neither: whether they changed the numbers is the question."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from accuracy.core.errors import ConfigError, printable
from accuracy.results.completeness import NO_PLAN
from accuracy.results.run_table import RunTable, read_baseline, read_run

HARD = ("device", "torch", "cuda", "cudnn", "flash_attn", "flash_attn_4", "triton", "knobs")
SOFT = ("compute_capability", "driver", "nccl", "system", "python", "environment")
NOT_COMPARED = (  # of provenance.packages: what is hard already, and what measures nothing
    "torch", "flash-attn", "flash-attn-4", "triton", "hydra-core", "omegaconf", "pandas", "pyarrow",
)  # fmt: skip
MISSING = "not recorded"


class Entry(NamedTuple):
    """One entry on both sides."""

    name: str
    baseline: str
    run: str

    def __str__(self) -> str:
        return f"{self.name} was {self.baseline}, is {self.run}"


def hard(about: Mapping[str, Any]) -> dict[str, str]:
    """What must be equal for numbers to be compared: GPU, torch, CUDA, cuDNN, every kernel, arithmetic switches."""
    return {name: _text(about["fingerprint"].get(name)) for name in HARD}


def soft(about: Mapping[str, Any]) -> dict[str, str]:
    """What should not change a number: driver, NCCL, system, other packages."""
    found = {name: about["provenance"].get(name) for name in SOFT}
    packages = about["provenance"].get("packages")
    if isinstance(packages, Mapping):
        named = {printable(str(name)): version for name, version in packages.items()}
        found |= {name: named[name] for name in sorted(named) if name not in NOT_COMPARED}
    return {name: _text(value) for name, value in found.items()}


def entries(baseline: Mapping[str, str], run: Mapping[str, str]) -> list[Entry]:
    """All entries, in order; absent on one side: not recorded."""
    names = dict.fromkeys((*baseline, *run))
    return [Entry(name, baseline.get(name, MISSING), run.get(name, MISSING)) for name in names]


def differences(baseline: Mapping[str, str], run: Mapping[str, str]) -> list[Entry]:
    """Entries that are not equal, in order; absent on one side counts."""
    return [entry for entry in entries(baseline, run) if entry.baseline != entry.run]


def commit_of(provenance: Mapping[str, Any]) -> str:
    """Of the user's functions that were measured; without any of the toolkit. 12 letters, `-dirty` behind them where
    files differed from it; nothing where no repository is known."""
    functions = provenance.get("functions")
    found = list(functions.values()) if isinstance(functions, Mapping) else []
    own = [each for one in found if isinstance(one, Mapping) for each in one.get("repositories") or ()]
    for each in own or [provenance]:
        if isinstance(each, Mapping) and each.get("git_commit"):
            return printable(str(each["git_commit"]))[:12] + ("-dirty" if each.get("dirty") else "")
    return ""


def comparable_baseline(run: RunTable, folder: Path) -> RunTable:
    """reports/NAME/DEVICE is itself; of reports or reports/NAME, the device that differs least. Raises ConfigError."""
    if not folder.is_dir():
        raise ConfigError(f"--baseline {folder}: no such folder; give reports/NAME or reports/NAME/DEVICE")
    if (folder / run.experiment / "").is_dir() and not (folder / "run.json").exists():
        folder = folder / run.experiment
    inside = sorted(each.parent for each in folder.glob("*/run.json"))
    if inside and not (folder / "run.json").exists():
        devices = [read_baseline(each) for each in inside]
        return min(devices, key=lambda each: len(differences(hard(each.about), hard(run.about))))
    if (folder / "results.parquet").exists() or not (folder / "results").is_dir():
        return read_baseline(folder)
    earlier = read_run(folder)  # its own folder, which must be finished
    if earlier.about.get("ended") is None or set(earlier.planned) - set(earlier.results["case_id"]):
        raise ConfigError(f"{folder} is not finished; repeat its command first")
    if strange := [fault for fault in earlier.faults if fault.text != NO_PLAN]:
        raise ConfigError(f"{folder}: {strange[0].name} {strange[0].text}; measure it again")
    return earlier


def _text(value: object) -> str:
    if value is None:
        return MISSING
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return printable(text)[:400]
