"""On what was it measured, and may two runs be compared? Hard: other numbers are to be expected. Soft: a warning.

What belongs to a single cell (variant, kernel, dtype, world kind and size, problem, inputs) is in the cell's own key,
`cell.KEYS`. The package's version and code are in neither: whether they changed the numbers is the question.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accuracy.core.printable import printable

HARD = ("device", "torch", "cuda", "cudnn", "flash_attn", "flash_attn_4", "triton", "knobs")
SOFT = ("compute_capability", "driver", "nccl", "system", "python", "environment")
NOT_COMPARED = (  # of provenance.packages: what is hard already, and what measures nothing
    "torch", "flash-attn", "flash-attn-4", "triton", "hydra-core", "omegaconf", "pandas", "pyarrow",
)  # fmt: skip
MISSING = "not recorded"


@dataclass(frozen=True)
class Difference:
    """One entry that differs between baseline and run."""

    name: str
    baseline: str
    run: str

    def __str__(self) -> str:
        return f"{self.name} was {self.baseline}, is {self.run}"


def hard(about: Mapping[str, Any]) -> dict[str, str]:
    """What must be equal for numbers to be compared: GPU, torch, CUDA, cuDNN, every kernel, arithmetic switches."""
    given = about["fingerprint"]
    return {name: _text(given.get(name)) for name in HARD}


def soft(about: Mapping[str, Any]) -> dict[str, str]:
    """What should not change a number: driver, NCCL, system, other packages."""
    given = about["provenance"]
    packages = given.get("packages")
    packages = packages if isinstance(packages, Mapping) else {}
    named = {str(name): version for name, version in packages.items() if name not in NOT_COMPARED}
    return {**{name: _text(given.get(name)) for name in SOFT}, **{name: _text(named[name]) for name in sorted(named)}}


def differences(baseline: Mapping[str, str], run: Mapping[str, str]) -> list[Difference]:
    """Entries that are not equal, in order; absent on one side counts."""
    names = list(dict.fromkeys((*baseline, *run)))
    pairs = [(name, baseline.get(name, MISSING), run.get(name, MISSING)) for name in names]
    return [Difference(*pair) for pair in pairs if pair[1] != pair[2]]


def _text(value: object) -> str:
    if value is None:
        return MISSING
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return printable(text)[:400]
