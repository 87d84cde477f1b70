"""`accuracy publish RUN_FOLDER`: a finished run as evidence, reports/EXPERIMENT/DEVICE/ with lean tables."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from accuracy.cli import Parser, path_of, status_of
from accuracy.core.errors import ConfigError
from accuracy.core.paths import whole_folder
from accuracy.results import run_table, storage, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print where the evidence is; 0, or 2 where there is nothing whole to publish."""
    parser = Parser("accuracy publish", "Publish a finished run as evidence.")
    parser.add_argument("folder", type=path_of, metavar="RUN_FOLDER", help="a finished run")
    parser.add_argument("--to", type=path_of, default=Path("reports"), help="default: reports")
    given = parser.parse_args(arguments)
    return status_of("accuracy publish", lambda: print(publish(given.folder, given.to)))


def publish(
    folder: Path,
    to: Path,
    every_digit: bool = False,
    lines: Mapping[str, str] | None = None,
    any_code: bool = False,
    name: str = "",
) -> Path:
    """Copy a run's tables and run.json, make its report; the folder, which replaces the one before as a whole.

    every_digit: of single ranks too, and no report: of a baseline. lines: to append to files that were there. any_code:
    whether other code may have measured the run. name: of the folder in `to`/EXPERIMENT, else the device's.
    Raises ConfigError for a run that is not finished, or that other code measured.
    """
    from accuracy.measurement.provenance import code_digest  # imports torch

    if not (folder / "run.json").exists():
        raise ConfigError(f"{folder} has no run.json; give the output_dir of a run")
    about, rows = table.read_run(folder), table.read_results(folder)
    target = target_of(about, to)
    target = target.with_name(name or target.name)
    missing = set(about["cases"]) - set(rows["case_id"])
    if missing or about.get("ended") is None:
        raise ConfigError(f"{folder} is not finished ({len(missing)} cases are missing); repeat its command first")
    code = about["fingerprint"]["code"]
    if not any_code and code != code_digest():
        raise ConfigError(f"{folder} was measured by other code ({code}); publish from its checkout")
    with whole_folder(target) as new:
        for name, line in (lines or {}).items():
            before = (target / name).read_bytes() if (target / name).exists() else b""
            ended = not before or before.endswith(b"\n")  # a damaged one may not
            (new / name).write_bytes(before + (b"" if ended else b"\n") + line.encode())
        _write(
            new, about, rows[rows["case_id"].isin(about["cases"])], every_digit, table.read_side(folder, "positions")
        )
        _write_further(new, folder)
    return target


def _write(target: Path, about: dict[str, Any], rows: pd.DataFrame, every_digit: bool, bins: pd.DataFrame) -> None:
    """Everything that a reader has of the rows. bins: of all positions."""
    from accuracy.report import build, explorer

    storage.write_table(storage.lean_results(rows, every_digit), target / "results.parquet")
    drawn = explorer.published_positions(rows, bins)
    if len(drawn):
        storage.write_table(storage.lean_positions(drawn), target / "positions.parquet")
    storage.write_json(target / "run.json", without_places(about))
    storage.write_sums(target)
    if not every_digit:  # a baseline lies in git
        build.write_report(target)


def _write_further(target: Path, folder: Path) -> None:
    """The tables that only some runs have, as they are."""
    for name in ("boundaries", "places"):
        if len(found := table.read_side(folder, name)):
            content = pa.Table.from_pandas(found, table.SIDE_TABLES[name], preserve_index=False)
            storage.write_table(content, target / f"{name}.parquet")


def target_of(about: dict[str, Any], to: Path) -> Path:
    """`to`/EXPERIMENT/DEVICE, as `nvidia-h200`; where real ranks had a GPU each, with the number: `nvidia-h200-x4`.
    Raises ConfigError where run.json lacks what is published of it."""
    if fault := run_table.damage_of_record(about):
        raise ConfigError(f"run.json {fault}")
    gpus = about["provenance"].get("device_count")
    several = "processes" in str(about["config"].get("world")) and isinstance(gpus, int)
    device = re.sub(r"[^a-z0-9]+", "-", str(about["fingerprint"]["device"]).lower()).strip("-")
    name = f"{device}-x{gpus}" if several and gpus else device
    return to / re.sub(r"[^\w-]", "-", str(about["experiment"])) / name


def without_places(about: dict[str, Any]) -> dict[str, Any]:
    """run.json without what was local to the machine that measured (where it wrote, its process), and without the plan,
    which a finished run has measured as a whole."""
    words = [str(word) for word in about["argv"]]
    words = [word for word in words if word.split("=")[0] not in ("output_dir", "report")]
    config = {key: value for key, value in about["config"].items() if key not in ("output_dir", "report", "reference")}
    rest = {name: value for name, value in about.items() if name != "plan"}
    return {**rest, "argv": words, "command": " ".join(words), "config": config, "process": None}
