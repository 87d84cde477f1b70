"""What the terminal shows: the plan before a run, and a short table after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accuracy.core.case import Case
from accuracy.execute.plan import Planned
from accuracy.execute.run import Outcome
from accuracy.results import table
from accuracy.results.summary import summary

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 40


def plan(plans: Sequence[Planned], folder: Path) -> str:
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


def _case_line(case: Case) -> str:
    problem, row = case.problem, case.identity()
    queries = "" if problem.seqlen_q is None else f" Sq={problem.seqlen_q}"
    words = [
        *(row[name] for name in ("case_id", "variant", "options", "precision", "kernel", "inputs", "dtype")),
        f"W={case.world_size}", f"seed={case.seed}",
        f"B={problem.batch} S={problem.seqlen}{queries} H={problem.heads}/{problem.heads_kv} D={problem.head_dim}",
        row["mask"], "" if problem.softcap is None else f"softcap={problem.softcap}",
    ]  # fmt: skip
    return "  ".join(str(word) for word in words if word)


def plan_line(plans: Sequence[Planned], device: str, workers: int) -> str:
    """One line before the progress bar."""
    where = device if workers == 1 else f"{workers} {device} workers"
    unsupported = sum(each.unsupported is not None for each in plans)
    return f"{len(plans)} cases on {where}, {unsupported} of them unsupported (their rows say why)"


def outcome(result: Outcome) -> str:
    """The run's counts, and every variant's worst ratio to single device at its largest world size."""
    from accuracy.paths import table as of_paths

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


def _failures(rows: pd.DataFrame, folder: Path) -> list[str]:
    """Why cases failed, the first three reasons, and where the tracebacks are."""
    reasons = Counter(rows.loc[rows["tensor"].isna() & (rows["status"] == table.FAILED), "reason"])
    lines = [f"failed: {count} x {reason}" for reason, count in reasons.most_common(3)]
    kept = folder / table.TRACEBACKS
    return [*lines, f"tracebacks: {kept}"] if lines and kept.is_dir() else lines


def _ratios(results: pd.DataFrame) -> str:
    title, found = summary(results)
    if found.empty:
        return "nothing was measured"
    if "world_size" in found.index.names:
        found = found.groupby(level=["dtype", "variant"]).tail(1)  # of the largest world size
    return f"{title}\n{found.to_string(float_format='{:.3g}'.format)}"
