"""What the terminal shows: the plan before a run, and a short table after it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from accuracy.core import fields
from accuracy.core.case import Case, Problem
from accuracy.core.probes import PROBES
from accuracy.execute.plan import Planned
from accuracy.execute.run import Outcome
from accuracy.measurement.memory import bytes_needed
from accuracy.results import table

SHOWN = 40


def plan(plans: Sequence[Planned], folder: Path) -> str:
    """Every planned case (the first 40), what is unsupported and why, memory, and where the run would go."""
    runnable = [each for each in plans if each.unsupported is None]
    lines = [_case_line(each) for each in runnable[:SHOWN]]
    if len(runnable) > SHOWN:
        lines.append(f"... and {len(runnable) - SHOWN} more")
    reasons = Counter(each.unsupported for each in plans if each.unsupported)
    lines += [f"unsupported: {count} x {reason}" for reason, count in reasons.most_common(SHOWN)]
    most = max(runnable, key=lambda each: bytes_needed(each.case))
    lines += [
        f"{len(plans)} cases planned, {len(runnable)} to measure, {len(plans) - len(runnable)} unsupported",
        f"memory: about {bytes_needed(most.case) / 2**30:.2f} GiB on {most.case.device} at most ({_case_line(most)})",
        f"output_dir: {folder} (nothing written)",
    ]
    return "\n".join(lines)


def _case_line(each: Planned) -> str:
    case, problem = each.case, each.case.problem
    words = [
        case.id, case.variant.name, case.variant.options_text, case.precision_text, case.kernel.name, case.inputs.name,
        case.dtype, f"W={case.world_size}", f"seed={case.seed}",
        _shape(problem), str(case.identity()["mask"]), "" if problem.softcap is None else f"softcap={problem.softcap}",
        *_stack_words(case),
    ]  # fmt: skip
    return "  ".join(word for word in words if word)


def _stack_words(case: Case) -> list[str]:
    row = case.identity()
    return [f"{name}={row[name]}" for name in fields.names(fields.STACK) if case.stack is not None]


def _shape(problem: Problem) -> str:
    queries = "" if problem.seqlen_q is None else f" Sq={problem.seqlen_q}"
    heads = f"{problem.heads}/{problem.heads_kv}"
    return f"B={problem.batch} S={problem.seqlen}{queries} H={heads} D={problem.head_dim}"


def plan_line(plans: Sequence[Planned], device: str, workers: int) -> str:
    """One line before the progress bar."""
    where = device if workers == 1 else f"{workers} {device} workers"
    unsupported = sum(each.unsupported is not None for each in plans)
    return f"{len(plans)} cases on {where}, {unsupported} of them unsupported (their rows say why)"


def outcome(result: Outcome) -> str:
    """The run's counts, and every variant's worst ratio to single device at its largest world size."""
    counts = f"{result.ok} measured, {result.unsupported} unsupported, {result.failed} failed"
    if result.earlier:
        counts += f", {result.earlier} found done"
    if result.interrupted:
        counts += "; interrupted: the same command goes on from here"
    rows = table.read_results(result.folder)
    stacks = table.in_stacks(rows)
    shown = [ratios(rows[~stacks])] if not stacks.all() or rows.empty else []
    shown += [bottom_gradients(rows[stacks])] if stacks.any() else []
    return "\n".join(["", "\n\n".join(shown), "", counts])


def ratios(results: pd.DataFrame) -> str:
    """Error over single device's, all ranks together, the worst over seeds and problems: variants by tensors.

    Probes are left out where there is more: their answers are exact, and single device's error may happen to be 0.
    """
    rows = results[(results["rank"] == table.ALL_RANKS) & results["tensor"].notna()]
    probing = rows["inputs"].isin(list(PROBES))
    rows = rows if probing.all() else rows[~probing]
    if rows.empty:
        return "nothing was measured"
    if (rows["variant"] == "single_device").all():
        return _floors(rows)
    largest = rows.groupby(["dtype", "variant"])["world_size"].transform("max")
    rows = rows[rows["world_size"] == largest]
    shown = rows.pivot_table(
        index=["dtype", "variant", "world_size"], columns="tensor", values="x_single_device", aggfunc="max"
    )
    shown = shown[list(_present(shown.columns))]
    title = "error / single device's error (relative Frobenius, all ranks, worst seed)"
    return f"{title}\n{shown.to_string(float_format=lambda value: f'{value:.3g}')}"


def bottom_gradients(rows: pd.DataFrame) -> str:
    """Of every variant and setting of a stack, the gradient below all layers of the deepest stack on the most ranks:
    medians over the seeds."""
    bottom = rows[(rows["status"] == table.OK) & (rows["tensor"] == "dx") & (rows["layer"] == 1)]
    if bottom.empty:
        return "no stack was measured"
    keys = ["dtype", "weights", "gain", "residual", "norm", "variant", "precision"]
    deepest = bottom[bottom["layers"] == bottom.groupby(keys)["layers"].transform("max")]
    numbers = ["error_rel", "x_single_device", "x_exact", "diff_rel"]
    median = deepest.astype({"layers": int}).groupby([*keys, "layers", "world_size"])[numbers].median().reset_index()
    shown = median.groupby(keys).tail(1).to_string(index=False, float_format=lambda value: f"{value:.3g}")
    return f"dx of layer 1, deepest stack (relative Frobenius, median over seeds)\n{shown}"


def _floors(rows: pd.DataFrame) -> str:
    """Of a run of kernels alone, which are their own single device."""
    shown = rows.pivot_table(index=["dtype", "kernel"], columns="tensor", values="x_floor", aggfunc="max")
    title = "error / floor (relative Frobenius, worst seed and problem)"
    table_text = shown[list(_present(shown.columns))].to_string(float_format=lambda value: f"{value:.3g}")
    return f"{title}\n{table_text}"


def _present(columns: Iterable[str]) -> Iterable[str]:
    return (name for name in table.TENSORS if name in set(columns))
