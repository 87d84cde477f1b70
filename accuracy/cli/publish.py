"""`accuracy-publish RUN_FOLDER`: a finished run as evidence, reports/EXPERIMENT/DEVICE/ with lean tables."""

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.results import lean, sums, table

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


def publish(folder: Path, to: Path, every_digit: bool = False) -> Path:
    """Copy a run's tables and run.json; make its report and figure. Arguments and errors as of `publish_tables`."""
    target, alone = publish_tables(folder, to, every_digit)
    write_pages(target, alone)
    return target


def publish_tables(folder: Path, to: Path, every_digit: bool) -> tuple[Path, pd.DataFrame]:
    """Copy a run's tables and run.json; the folder, and the rows of attention alone. every_digit: of single ranks too.

    Raises ValueError for a run that is not finished, or that other code measured.
    """
    from accuracy.measurement.provenance import code_digest
    from accuracy.report.section import positions

    if not (folder / "run.json").exists():
        raise ValueError(f"{folder} has no run.json; give the output_dir of a run")
    about = table.read_run(folder)
    rows = table.read_results(folder)
    missing = set(about["cases"]) - set(rows["case_id"])
    if missing or about["ended"] is None:
        raise ValueError(f"{folder} is not finished ({len(missing)} cases are missing); repeat its command first")
    if about["fingerprint"]["code"] != code_digest():
        code = about["fingerprint"]["code"]
        raise ValueError(f"{folder} was measured by other code ({code}); publish from its checkout")
    target = target_of(about, to)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    rows = rows[rows["case_id"].isin(about["cases"])]  # the folder may hold cases of another plan
    alone = rows[~table.in_stacks(rows)]
    lean.write(lean.lean_results(rows, every_digit), target / "results.parquet")
    drawn = positions.drawn(alone, table.read_positions(folder))
    if len(drawn):
        lean.write(lean.lean_positions(drawn), target / "positions.parquet")
    table.write_json(target / "run.json", {**_without_places(about), "full_table": lean.digest(rows)})
    return target, alone


def write_pages(target: Path, alone: pd.DataFrame) -> None:
    """Checksums, report and, where the world size varies, the figure. alone: the rows of attention alone."""
    from accuracy.report import build, figure

    sums.write(target)
    build.write_report(target)
    if len(alone):
        figure.write_growth_figure(alone, target / "growth.svg")


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
