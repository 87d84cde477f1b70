"""One job: a composed configuration is planned and measured, its report and its diagnosis are written and told."""

import gc
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from accuracy.cli import FAULTY, INTERRUPTED, NOTHING_MEASURED, report, sweep
from accuracy.cli.launched import tell
from accuracy.core.errors import ConfigError, RanksEnded
from accuracy.execute import start as processes

if TYPE_CHECKING:
    import pandas as pd

    from accuracy.config.read import Configuration
    from accuracy.execute.dispatch import Launched
    from accuracy.execute.plan import Planned
    from accuracy.execute.run import Outcome

DIAGNOSE = "diagnose"  # the experiment whose exit status says what it found


def measure(config: Any, folders: list[Path], command: list[str], launch: processes.Launch | None = None) -> int:
    """Plan, measure, report; the exit status. Raises ConfigError before any work."""
    from accuracy.config.read import read

    configuration = read(config, folders)
    if launch is not None and configuration.world != "processes":
        raise ConfigError(
            f"{launch.by} started {launch.size} processes, but world={configuration.world} needs one;"
            f" use world=processes, or start accuracy without {launch.by}"
        )
    if launch is None and processes.only_workers_measure and not configuration.dry_run:
        of_ranks = configuration.world == "processes"  # the server imports torch beside this process
        processes.start_server(processes.OF_RANKS if of_ranks else processes.OF_WORKERS)
    from accuracy.execute.settle import settled  # torch is imported only now: help and mistakes answer at once
    from accuracy.runtime import arithmetic, device

    configuration = settled(configuration)
    arithmetic.make_exact()
    free = device.free_bytes(configuration.device)
    with arithmetic.computing_with(configuration.threads, configuration.device):
        return _carry_out(configuration, config, command, launch, free)


def _carry_out(
    configuration: "Configuration", config: Any, command: list[str], launch: processes.Launch | None, free: int | None
) -> int:
    """Plan; as this process's part of it measure what is planned, and report; the exit status."""
    from accuracy.cli import plan_text
    from accuracy.execute import run
    from accuracy.execute.ask import measured_here, with_answers
    from accuracy.execute.dispatch import fitting_workers
    from accuracy.execute.folder import make_writable, opened
    from accuracy.execute.plan import plan, ranks_here

    if not gc.isenabled():  # `run.command`: what stays is imported
        gc.freeze()
        gc.enable()
    refused: list[Planned] = []
    if not configuration.dry_run:
        ask = measured_here if launch is None else partial(_asked_on, launch)
        configuration, refused = with_answers(configuration, partial(ask, config=config))
    ranks = ranks_here(configuration) if launch is None else launch.size
    plans = plan(configuration, free, ranks, _with_own_gpu(configuration, launch)) + refused
    configuration = replace(configuration, workers=fitting_workers(configuration, plans, free))
    folder = run.folder_of(configuration, config)
    first = launch is None or launch.rank == 0
    if configuration.dry_run:
        if first:
            print(plan_text.plan(plans, folder))
        return 0
    if first and configuration.reference_folder is not None:
        make_writable("reference.folder", configuration.reference_folder)
    with opened(folder, configuration.device) if first else nullcontext():
        launched = _joined(configuration, plans, folder, launch)
        if not first:
            return 0
        print(plan_text.plan_line(plans, configuration.device, configuration.workers), file=sys.stderr)
        begun = _import_later(configuration) if configuration.workers > 1 or processes.only_workers_measure else None
        try:
            outcome = run.execute(configuration, config, plans, folder, command, launched, begun=begun)
        except RanksEnded as ended:
            print(f"accuracy: {ended}", file=sys.stderr)
            return NOTHING_MEASURED
        tell(None)
        print(plan_text.outcome(outcome))
        verdicts = report.of_run(outcome) if configuration.report and not sweep.noted(folder) else None
        if outcome.interrupted:
            return INTERRUPTED
        if outcome.removed:
            gone = f"the rows of {outcome.removed} cases are gone from {folder}: something removed them meanwhile"
            print(f"accuracy: {gone}; the same command measures them again", file=sys.stderr)
            return NOTHING_MEASURED
        if not outcome.ok + outcome.earlier_ok:
            return NOTHING_MEASURED
        named = configuration.name == DIAGNOSE
        return _diagnose(outcome, {each.case.id for each in plans}, verdicts) if named else 0


def _asked_on(launch: processes.Launch, tiny: "Configuration", config: Any) -> "pd.DataFrame":
    """Return on each of the launched processes the table of a run that is not kept."""
    import pandas as pd

    from accuracy.execute.ask import measured_here, planned
    from accuracy.execute.ranks.caller import share_tables

    with TemporaryDirectory(prefix="accuracy-") as folder:
        launched = _joined(tiny, planned(tiny), Path(folder), launch)
        rows = measured_here(tiny, config, launched) if launch.rank == 0 else pd.DataFrame()
        assert launched is not None
        return share_tables([rows], launched.ranks)[0]


def _with_own_gpu(configuration: "Configuration", launch: processes.Launch | None) -> int | None:
    """Return how many of the launched processes have a GPU each; None: this machine says it."""
    if launch is None or configuration.device != "cuda" or configuration.dry_run:
        return None
    from accuracy.execute.ranks.rendezvous import with_own_gpu

    return with_own_gpu(launch, must=configuration.share_gpu is False)


def _joined(
    configuration: "Configuration", plans: "list[Planned]", folder: Path, launch: processes.Launch | None
) -> "Launched | None":
    """Return the launched processes as ranks, with the same cases on each; all but the first do their part of the run
    here. None: this process was started alone."""
    if launch is None:
        return None
    from accuracy.execute.dispatch import Launched, task_of
    from accuracy.execute.ranks import rank_loop
    from accuracy.execute.ranks.rendezvous import join_launched

    task = task_of(configuration, folder, plans, launch.size)
    launched = Launched(join_launched(launch, task.backend, task.sizes, task.digest, task.shared), task)
    tell(folder)
    if launched.ranks.rank > 0:
        rank_loop.follow(task, launched.ranks)
        tell(None)
    return launched


def _import_later(configuration: "Configuration") -> Callable[[], None]:
    """Return a function whose first call lets a thread import what comes behind the cases, while others measure."""
    modules = ["accuracy.verdict.diagnosis", *(["accuracy.report.build"] if configuration.report else [])]
    thread = threading.Thread(target=lambda: [import_module(each) for each in modules], daemon=True)
    return lambda: None if thread.ident else thread.start()


def _diagnose(outcome: "Outcome", planned: set[str], verdicts: "pd.DataFrame | None") -> int:
    """Print each variant's diagnosis and return the exit status: whether one is a bug, and whether one rank alone of
    several was measured. verdicts: the report's, where there is one."""
    from accuracy.results import table
    from accuracy.verdict import verdict
    from accuracy.verdict.diagnosis import diagnoses, sentences
    from accuracy.verdict.label import TOO_LITTLE

    folder, results = outcome.folder, outcome.results
    results = table.read_results(folder) if results is None else results
    results = results[results["case_id"].isin(planned)]
    verdicts = verdict.verdicts(results) if verdicts is None else verdicts
    found = diagnoses(verdicts, results, table.read_side(folder, "steps"), table.read_side(folder, "hypotheses"))
    told = zip(sentences(found), found, strict=True)
    print("", *(line for sentence, each in told for line in (sentence, *each.evidence)), sep="\n")
    if any(each.is_bug for each in found):
        return FAULTY
    return NOTHING_MEASURED if any(each.label in TOO_LITTLE for each in found) else 0
