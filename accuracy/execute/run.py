"""A run: a plan carried out into a folder that can be killed, resumed and read at any moment."""

from __future__ import annotations

import datetime
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm.auto import tqdm

from accuracy.config.read import Configuration
from accuracy.core import fields
from accuracy.core.case import Case, digest
from accuracy.execute.dispatch import Launched, measure
from accuracy.execute.folder import opened, set_other_code_aside
from accuracy.execute.plan import Planned, plan
from accuracy.measurement.provenance import code_of, fingerprint, of_functions, provenance
from accuracy.results import completeness, storage, table
from accuracy.results.completeness import Promise

if TYPE_CHECKING:
    import pandas as pd

NOT_NUMBERS = ("output_dir", "report", "dry_run", "workers", "case_seconds", "given", "given_keys")
"""Keys of a configuration that change no number."""
QUESTION_SECONDS = 60.0  # that a case of a question to a function may take


class Progress(tqdm):
    """A progress bar with a lock of threads: tqdm's own lock would fix the start method of multiprocessing."""

    _lock = threading.RLock()


class Outcome(NamedTuple):
    """Where the run is, and how its cases ended; `earlier`: found done in the folder, `earlier_ok` of them measured;
    results: all rows, where the run came to its end."""

    folder: Path
    ok: int
    unsupported: int
    failed: int
    earlier: int
    earlier_ok: int
    interrupted: bool
    results: pd.DataFrame | None = None


def folder_of(configuration: Configuration, config: Mapping[str, Any]) -> Path:
    """Return the given output_dir, or one that the same command with the same code on the same device finds again."""
    if configuration.output_dir is not None:
        return configuration.output_dir
    content = {key: value for key, value in config.items() if key not in NOT_NUMBERS}
    identity = digest({"config": content, "fingerprint": fingerprint(configuration.device)})
    return Path("outputs") / f"{configuration.name}-{identity[:8]}"


def execute(
    configuration: Configuration,
    config: Mapping[str, Any],
    plans: Sequence[Planned],
    folder: Path,
    command: list[str],
    launched: Launched | None = None,
    quiet: bool = False,
) -> Outcome:
    """Measure every planned case that the folder does not have; a case's rows are on the disk before it counts.
    launched: the real ranks that this process is the first of; None: it was started alone. quiet: no progress bar."""
    ids = [each.case.id for each in plans]
    about = record(configuration.name, configuration.device, config, ids, ["accuracy", *command]) | {
        "workers": configuration.workers,
        "process": os.getpid(),
    }
    about["provenance"] |= {"functions": of_functions(configuration)}
    files = storage.read_files(folder)
    if moved := set_other_code_aside(folder, plans, files):
        logging.getLogger("accuracy").warning("accuracy: %s", moved)
    codes = {each.case.id: code_of(each.case) for each in plans}
    promises = {each.case.id: Promise(each.case.seed, each.case.world_size, codes[each.case.id]) for each in plans}
    about["plan"] = completeness.new_plan(promises, about["fingerprint"]["device"])
    storage.write_json(folder / "run.json", about)
    finished = storage.finished_cases(files)
    planned = {each.case.id: each.case for each in plans if each.case.id in finished}
    done = {
        case_id: finished[case_id].status
        for case_id, case in planned.items()
        if finished[case_id].code == codes[case_id] and storage.is_of(files[case_id], fields.identity(case))
    }
    rows = {case_id: files[case_id].rows for case_id in done}
    pending = [each for each in plans if each.case.id not in done]
    waiting = {each.case.id for each in pending}
    counts = {table.OK: 0, table.UNSUPPORTED: 0, table.FAILED: 0}
    interrupted, results = False, None
    progress = Progress(
        total=len(plans), initial=len(plans) - len(pending), unit="case", dynamic_ncols=True, disable=quiet
    )

    def begin(case: Case) -> None:
        progress.set_postfix_str(f"{case.variant.name} {case.said_dtype} W={case.world_size}", refresh=False)

    try:
        with closing(measure(configuration, folder, pending, launched, begin)) as ended:
            for status in ended:
                counts[status] += 1
                progress.update()
                if configuration.workers > 1:  # they measure meanwhile
                    storage.read_more(folder, rows, waiting)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        progress.close()
    if not interrupted:
        results = table.results_of(folder, [case_id for case_id in ids if case_id not in rows], [*rows.values()])
        about |= {"ended": now(), "plan": completeness.closed_plan(about["plan"], results)}
    storage.write_json(folder / "run.json", about)
    earlier_ok = sum(status == table.OK for status in done.values())
    ended_so = counts["ok"], counts["unsupported"], counts["failed"]
    return Outcome(folder, *ended_so, len(done), earlier_ok, interrupted, results)


def planned(tiny: Configuration) -> list[Planned]:
    """Return the cases of questions to a function (`accuracy.execute.ask`)."""
    return plan(tiny, None, tiny.world_sizes[0])


def measured_here(tiny: Configuration, config: Mapping[str, Any], launched: Launched | None = None) -> pd.DataFrame:
    """Return the table of questions: of a run whose folder is not kept. config: what a run records; launched: the real
    ranks that this process is the first of."""
    tiny = replace(tiny, case_seconds=min(QUESTION_SECONDS, tiny.case_seconds))
    with TemporaryDirectory(prefix="accuracy-") if launched is None else nullcontext(launched.task.folder) as folder:
        plans = planned(tiny)
        with opened(Path(folder), tiny.device):
            outcome = execute(tiny, config, plans, Path(folder), ["(asked)"], launched, quiet=True)
        if outcome.interrupted:
            raise KeyboardInterrupt
        return table.read_results(Path(folder))


def record(name: str, device: str, config: Mapping[str, Any], cases: Sequence[str], words: list[str]) -> dict[str, Any]:
    """Return what `run.json` holds of a run that begins. cases: the ids of those that are planned."""
    return {
        "schema_version": table.SCHEMA_VERSION,
        "experiment": name,
        "command": " ".join(words),
        "argv": words,
        "config": dict(config),
        "started": now(),
        "ended": None,
        "planned": len(cases),
        "cases": list(cases),
        "fingerprint": fingerprint(device),
        "provenance": provenance(device),
    }


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
