"""One job: a composed configuration is planned and measured, its report and its diagnosis are written and told; what
the terminal shows before and after it."""

import gc
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from accuracy.cli import FAULTY, INTERRUPTED, NOTHING_MEASURED, report, show
from accuracy.core import fields
from accuracy.core.errors import ConfigError, RanksEnded
from accuracy.execute import start as processes

if TYPE_CHECKING:
    import pandas as pd

    from accuracy.config.read import Configuration
    from accuracy.core.case import Case
    from accuracy.execute.dispatch import Launched
    from accuracy.execute.plan import Planned
    from accuracy.execute.run import Outcome

SHOWN = 40  # cases of a plan
DIAGNOSE = "diagnose"  # the experiment whose exit status says what it found


def measure(config: Any, folders: list[Path], command: list[str], launch: processes.Launch | None = None) -> int:
    """Plan, measure, report; the exit status. Raises ConfigError before any work."""
    from accuracy.config.read import read

    configuration = read(config, folders)
    if launch is not None and configuration.world != "processes":
        raise ConfigError(
            f"torchrun started {launch.size} processes, but world={configuration.world} needs one;"
            " use world=processes, or start accuracy without torchrun"
        )
    if launch is None and processes.only_workers_measure and not configuration.dry_run:
        of_ranks = configuration.world == "processes"  # the server imports torch beside this process
        processes.start_server(processes.OF_RANKS if of_ranks else processes.OF_WORKERS)
    from accuracy.execute.settle import settled  # torch is imported only now: help and mistakes answer at once
    from accuracy.runtime import arithmetic, device

    configuration = settled(configuration)
    arithmetic.make_exact()
    free = device.free_bytes(configuration.device)
    with arithmetic.computing_with(configuration.threads, configuration.device), ExitStack() as ranks:
        ranks.enter_context(_ranks_kept(configuration, launch))
        return _carry_out(configuration, config, command, launch, free, ranks)


def _ranks_kept(configuration: "Configuration", launch: processes.Launch | None) -> AbstractContextManager[None]:
    """In the body ranks that have answered questions about a function stay, and measure it."""
    if launch is not None or configuration.dry_run or configuration.world != "processes":
        return nullcontext()
    from accuracy.execute.ranks import agent

    return agent.kept()


def _carry_out(
    configuration: "Configuration", config: Any, command: list[str], launch: processes.Launch | None, free: int | None,
    ranks_kept: ExitStack,
) -> int:  # fmt: skip
    """Plan; as this process's part of it measure what is planned, and report; the exit status. ranks_kept: closing
    it ends ranks that stay from one run to the next."""
    from accuracy.execute import run
    from accuracy.execute.ask import with_answers
    from accuracy.execute.dispatch import fitting_workers
    from accuracy.execute.folder import opened
    from accuracy.execute.plan import plan, ranks_here

    if not gc.isenabled():  # `run.command`: what stays is imported
        gc.freeze()
        gc.enable()
    refused: list[Planned] = []
    if not configuration.dry_run:
        ask = run.measured_here if launch is None else partial(_asked_on, launch)
        configuration, refused = with_answers(configuration, partial(ask, config=config))
    ranks = ranks_here(configuration) if launch is None else launch.size
    plans = plan(configuration, free, ranks, _with_own_gpu(configuration, launch)) + refused
    configuration = replace(configuration, workers=fitting_workers(configuration, plans, free))
    folder = run.folder_of(configuration, config)
    first = launch is None or launch.rank == 0
    if configuration.dry_run:
        if first:
            show(plan_text(plans, folder))
        return 0
    with opened(folder, configuration.device) if first else nullcontext():
        launched = _joined(configuration, plans, folder, launch)
        if not first:
            return 0
        print(plan_line(plans, configuration.device, configuration.workers), file=sys.stderr)
        try:
            outcome = run.execute(configuration, config, plans, folder, command, launched)
            ranks_kept.close()
        except RanksEnded as ended:
            print(f"accuracy: {ended}", file=sys.stderr)
            return NOTHING_MEASURED
        show(outcome_text(outcome))
        verdicts = report.of_run(outcome) if configuration.report else None
        if outcome.interrupted:
            return INTERRUPTED
        if not outcome.ok + outcome.earlier_ok:
            return NOTHING_MEASURED
        named = configuration.name == DIAGNOSE
        return _diagnose(outcome, {each.case.id for each in plans}, verdicts) if named else 0


def _asked_on(launch: processes.Launch, tiny: "Configuration", config: Any) -> "pd.DataFrame":
    """Return on each of the launched processes the table of a run that is not kept."""
    import pandas as pd

    from accuracy.execute.ranks.caller import share_tables
    from accuracy.execute.run import measured_here, planned

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

    task = task_of(configuration, folder, plans, launch.size, "launcher")
    launched = Launched(join_launched(launch, task.backend, task.sizes, task.digest, task.shared), task)
    if launched.ranks.rank > 0:
        rank_loop.follow(task, launched.ranks)
    return launched


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
    show("", *(line for sentence, each in told for line in (sentence, *each.evidence)))
    if any(each.is_bug for each in found):
        return FAULTY
    return NOTHING_MEASURED if any(each.label in TOO_LITTLE for each in found) else 0


def plan_text(plans: "Sequence[Planned]", folder: Path) -> str:
    """Every planned case (the first 40), what is unsupported and why, memory, and where the run would go."""
    runnable = [each for each in plans if each.unsupported is None]
    lines = [_case_line(each.case) for each in runnable[:SHOWN]]
    if len(runnable) > SHOWN:
        lines.append(f"... and {len(runnable) - SHOWN} more")
    reasons = Counter(each.unsupported for each in plans if each.unsupported)
    lines += [f"unsupported: {count} x {reason}" for reason, count in reasons.most_common(SHOWN)]
    most = max(runnable, key=lambda each: each.bytes)
    return "\n".join([
        *lines,
        f"{len(plans)} cases planned, {len(runnable)} to measure, {len(plans) - len(runnable)} unsupported",
        f"memory: about {most.bytes / 2**30:.2f} GiB on {most.case.device} at most ({_case_line(most.case)})",
        f"output_dir: {folder} (nothing written)",
    ])  # fmt: skip


def _case_line(case: "Case") -> str:
    return f"{case.id}  {fields.label(case.identity(), fields.names())}"


def plan_line(plans: "Sequence[Planned]", device: str, workers: int) -> str:
    """One line before the progress bar."""
    where = device if workers == 1 else f"{workers} {device} workers"
    unsupported = sum(each.unsupported is not None for each in plans)
    return f"{len(plans)} cases on {where}, {unsupported} of them unsupported (their rows say why)"


def outcome_text(result: "Outcome") -> str:
    """The run's counts, and every variant's worst ratio to single device at its largest world size."""
    from accuracy.paths import table as of_paths
    from accuracy.results import table

    counts = f"{result.ok} measured, {result.unsupported} unsupported, {result.failed} failed"
    if result.earlier:
        counts += f", {result.earlier} found done"
    if result.interrupted:
        counts += "; interrupted: the same command goes on from here"
    rows = table.read_results(result.folder) if result.results is None else result.results
    paired = rows["against"].fillna("") != ""
    shown = [of_paths.pairs_text(rows[paired])] if paired.any() else [_ratios(rows)]
    found = table.read_side(result.folder, "boundaries")
    shown += [of_paths.boundaries_text(of_paths.boundaries(found, rows))] if len(found) else []
    switched = table.read_side(result.folder, "places")
    shown += [of_paths.places_text(of_paths.places(switched, rows))] if len(switched) else []
    return "\n".join(["", "\n\n".join(shown), "", counts, *_failures(rows, result.folder)])


def _failures(rows: "pd.DataFrame", folder: Path) -> list[str]:
    """Why cases failed, the first three reasons, and where the tracebacks are."""
    from accuracy.results import table

    reasons = Counter(rows.loc[rows["tensor"].isna() & (rows["status"] == table.FAILED), "reason"])
    lines = [f"failed: {count} x {reason}" for reason, count in reasons.most_common(3)]
    kept = folder / table.TRACEBACKS
    return [*lines, f"tracebacks: {kept}"] if lines and kept.is_dir() else lines


def _ratios(results: "pd.DataFrame") -> str:
    from accuracy.results.table import summary

    title, found = summary(results)
    if found.empty:
        return "nothing was measured"
    if "world_size" in found.index.names:
        found = found.groupby(level=["dtype", "variant"]).tail(1)  # of the largest world size
    return f"{title}\n{found.to_string(float_format='{:.3g}'.format)}"
