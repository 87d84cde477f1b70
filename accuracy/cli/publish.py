"""`accuracy-publish RUN_FOLDER`: a finished run as evidence, reports/EXPERIMENT/DEVICE/ with one file a table."""

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from accuracy.results import layers, sums, table

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Print where the evidence is; 0, or 2 where there is nothing whole to publish."""
    parser = argparse.ArgumentParser(prog="accuracy-publish", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="a finished run")
    parser.add_argument("--to", type=Path, default=Path("reports"), help="default: reports")
    given = parser.parse_args(arguments)
    try:
        print(publish(given.folder, given.to))
    except (OSError, ValueError) as error:
        print(f"accuracy-publish: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


def publish(folder: Path, to: Path) -> Path:
    """Copy a run's tables and run.json; make its report and figure. Raises ValueError for a run that is not whole."""
    from accuracy.measure.provenance import code_digest

    if not (folder / "run.json").exists():
        raise ValueError(f"{folder} has no run.json; give the output_dir of a run")
    about = table.read_run(folder)
    (_, first, _), *_ = tables = _tables(folder)
    missing = set(about["cases"]) - set(first["case_id"])
    if missing or about["ended"] is None:
        raise ValueError(f"{folder} is not finished ({len(missing)} cases are missing); repeat its command first")
    if about["fingerprint"]["code"] != code_digest():
        code = about["fingerprint"]["code"]
        raise ValueError(f"{folder} was measured by other code ({code}); publish from its checkout")
    target = target_of(about, to)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name, frame, schema in tables:
        frame = frame[frame["case_id"].isin(about["cases"])]  # the folder may hold cases of another plan
        pq.write_table(
            pa.Table.from_pandas(frame, schema, preserve_index=False),
            target / f"{name}.parquet",
            compression="zstd",
        )
    table.write_json(target / "run.json", _without_places(about))
    _write_pages(target, first)
    return target


def _tables(folder: Path) -> list[tuple[str, pd.DataFrame, pa.Schema]]:
    """Name, rows and schema of a run's tables; first the one that has a row of every case."""
    if layers.has(folder):
        return [(layers.FOLDER, layers.read(folder), layers.SCHEMA)]
    return [
        ("results", table.read_results(folder), table.RESULTS_SCHEMA),
        ("positions", table.read_positions(folder), table.POSITIONS_SCHEMA),
    ]


def _write_pages(target: Path, rows: pd.DataFrame) -> None:
    from accuracy.report import build, depth, figure

    if layers.has(target):
        depth.write_report(target)
        return
    build.write_report(target)
    figure.write_growth_figure(rows, target / "growth.svg")
    sums.write(target)  # of what the gate reads: attention alone


def target_of(about: dict[str, Any], to: Path) -> Path:
    """The folder of a run's evidence: `to`/EXPERIMENT/DEVICE."""
    return to / re.sub(r"[^\w-]", "-", str(about["experiment"])) / _machine(about)


def _without_places(about: dict[str, Any]) -> dict[str, Any]:
    """run.json without what was local to the machine that measured: where it wrote, and its process."""
    kept = [word for word in about["argv"] if word.split("=")[0] not in ("output_dir", "report", "reference.folder")]
    config = {key: value for key, value in about["config"].items() if key not in ("output_dir", "report", "reference")}
    return {**about, "argv": kept, "command": " ".join(kept), "config": config, "process": None}


def _machine(about: dict[str, Any]) -> str:
    """`nvidia-h200`; where real ranks had a GPU each, how many GPUs there were: `nvidia-h200-x4`."""
    device = re.sub(r"[^a-z0-9]+", "-", str(about["fingerprint"]["device"]).lower()).strip("-")
    gpus = about["provenance"].get("device_count")
    return f"{device}-x{gpus}" if "processes" in about["config"].get("world", ()) and gpus else device


if __name__ == "__main__":
    sys.exit(main())
