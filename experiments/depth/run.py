"""A run: every planned stack measured, one file each, so that the same command goes on where it was stopped."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accuracy.config.read import Configuration
from accuracy.core import own_code
from accuracy.core.case import digest
from accuracy.execute.folder import make_writable
from accuracy.execute.run import NOT_NUMBERS, record
from accuracy.measurement.provenance import code_of, fingerprint
from accuracy.results import storage
from accuracy.runtime import arithmetic
from experiments.depth import table
from experiments.depth.measure import Measurer
from experiments.depth.plan import Planned

OWN = own_code.digest([*Path(__file__).parent.glob("*.py")])[:12]
"""Of this folder's code, which decides numbers, too."""


def folder_of(configuration: Configuration, config: Mapping[str, Any]) -> Path:
    """The given output_dir, or one that the same command with the same code on the same device finds again."""
    content = {key: value for key, value in config.items() if key not in NOT_NUMBERS}
    identity = digest({"config": content, "fingerprint": fingerprint(configuration.device), "own": OWN})
    return configuration.output_dir or Path("outputs") / f"{configuration.name}-{identity[:8]}"


def execute(
    configuration: Configuration,
    config: Mapping[str, Any],
    plans: Sequence[Planned],
    folder: Path,
    words: Sequence[str],
    tell: Callable[[str], object] = lambda line: None,
) -> None:
    """Measure what the folder does not have, and write its table. tell: is called with a line before each stack."""
    make_writable("output_dir", folder)
    about = record(configuration.name, configuration.device, config, [each.id for each in plans],
                   ["python", "-m", "experiments.depth", *words])  # fmt: skip
    storage.write_json(folder / "run.json", about | {"own_code": OWN})
    arithmetic.make_exact()
    measurer = Measurer(configuration, OWN)
    with arithmetic.computing_with(configuration.threads, configuration.device):
        for number, each in enumerate(plans, 1):
            if not _is_there(folder, each):
                tell(f"{number}/{len(plans)} {each.case.variant.name} {each.case.dtype} W={each.case.world_size}"
                     f" {each.stack.layers} layers seed={each.case.seed}")  # fmt: skip
                rows = measurer.measure(each)
                storage.write_rows(folder / "results" / f"{each.id}.parquet", rows, table.SCHEMA)
    ids = [each.id for each in plans]
    storage.write_table(table.lean(table.of_cases(folder / "results", ids, table.SCHEMA)), folder / table.FILE)


def _is_there(folder: Path, each: Planned) -> bool:
    """Whether an earlier run of the same code has measured it."""
    found = table.of_cases(folder / "results", [each.id], table.SCHEMA)
    return bool(found.num_rows) and found["code"][0].as_py() == f"{code_of(each.case)}+{OWN}"
