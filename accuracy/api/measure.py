"""`accuracy.measure`: how far are attention variants, or functions of one's own, from float64?"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch.distributed as dist
from typing_extensions import Unpack

from accuracy.api.request import Dtypes, Problem, Subjects, asked, request
from accuracy.api.tables import path_of
from accuracy.config.checks import values_of
from accuracy.config.read import Configuration
from accuracy.core import plugins
from accuracy.core.errors import OF_PROBLEM, entry
from accuracy.execute import run as runs
from accuracy.execute.ask import with_answers
from accuracy.execute.dispatch import Launched, task_of
from accuracy.execute.folder import opened
from accuracy.execute.plan import Planned, plan, ranks_here
from accuracy.execute.ranks import caller, rank_loop
from accuracy.execute.settle import read_settled
from accuracy.results import table
from accuracy.runtime import arithmetic
from accuracy.runtime import device as devices


@dataclass(frozen=True)
class Run:
    """The tables of a run, each as `accuracy.results.table` reads it."""

    results: pd.DataFrame
    steps: pd.DataFrame
    hypotheses: pd.DataFrame
    boundaries: pd.DataFrame
    places: pd.DataFrame


SIDE = tuple(each.name for each in fields(Run))[1:]


@entry(OF_PROBLEM)
def measure(
    variant: Subjects, *, dtype: Dtypes = "bfloat16", world_size: Any = 1, seed: Any = 0, inputs: Any = "gaussian",
    kernel: Any = "auto", world: str = "simulated", sharding: str = "contiguous", layout: str = "bshd",
    device: str = "auto", output_dir: str | Path | None = None, case_seconds: float | None = None,
    progress: bool = True, **problem: Unpack[Problem],
) -> pd.DataFrame:  # fmt: skip
    """Measure variants or functions against float64 and against their kernel on a single device.

    variant: names (`"ring"`; `accuracy --help` lists them), functions, a list of both, or functions by name in a dict.
    A function is called as::

        fn(q, k, v, *, causal, softmax_scale, group) -> out or (out, lse)

    with one rank's shards of q (B, S/W, H, D), k and v (B, S/W, Hk, D) in the case's dtype; it returns out, shaped like
    q and in its dtype, and lse (B, H, S/W) in natural logarithms, in any floating dtype, if it has one. group: the
    ranks' `torch.distributed` group, also of one rank. sharding: which tokens a rank of the function gets (contiguous,
    zigzag, striped); layout: how it takes its tensors (bshd, bhsd, sbhd, thd, kvpacked, qkvpacked). On several ranks it
    runs in processes that are started here; where these are more than GPUs, they share one (column `sums`).

    Each of dtype (bfloat16, float16, float32, float64, or torch's), world_size, seed, inputs, kernel and problem may be
    a list: every combination is measured. inputs, kernel: names, or options by name in a dict. world: `simulated` (all
    ranks of a variant in this process) or `processes`. device: auto, cpu or cuda. output_dir: a folder to keep; what it
    has already is not measured again. case_seconds: after which a case is stopped and failed; by default an hour, and
    more where it is large. progress: show a bar. problem: batch, seqlen (of all ranks), seqlen_q, heads, heads_kv,
    head_dim, mask (causal, full), window, documents, softmax_scale, softcap, head_dim_v, sinks and padding; and
    attn_mask, of functions on one rank: True where a query sees a key, or what is added to the scores, broadcast to
    (B, H, Sq, S), or a callable that returns one for these four sizes. A function gets it, and sinks (H,), by its own
    word.

    Returns one row per case, tensor and rank (-1: all), of columns that `accuracy.columns()` explains. A case that
    raised is a row with status `failed` and the reason. Raises ConfigError, a ValueError, in one line.
    """
    return execute(request(variant, asked(locals())), output_dir, progress=progress).results


def execute(
    config: dict[str, Any],
    output_dir: str | Path | None,
    group: dist.ProcessGroup | None = None,
    switches: arithmetic.Switches | None = None,
    progress: bool = False,
) -> Run:
    """Measure a configuration in this process and in those of its ranks: the caller's own where there are several.

    group: of the caller's processes, by default all of them; switches: of the arithmetic that users' functions run
    with, by default exact. Raises ConfigError, and RanksEnded where the caller's processes are left out of step.
    """
    if output_dir is not None:
        output_dir = path_of("output_dir", output_dir)
    several = any(size != 1 for size in values_of(config.get("world_size", 1)))
    may_share = several and "processes" in config.get("world", ())  # a case of several ranks in processes
    shared = caller.callers_group(group, devices.choose(str(config["device"]))) if may_share else None
    if shared is not None and "world_size" not in config.get("given", ()):  # theirs among those that nobody chose
        fewer = [each for each in values_of(config["world_size"]) if each < shared.size()]
        config = {**config, "world_size": [*fewer, shared.size()]}
    configuration = read_settled(config)
    device = configuration.device
    with (
        arithmetic.exact(),
        arithmetic.functions_with(switches),
        arithmetic.computing_with(configuration.threads, device),
        TemporaryDirectory(prefix="accuracy-") if output_dir is None else nullcontext(output_dir) as folder,
    ):
        ask = partial(runs.measured_here, config=config) if shared is None else partial(_asked_on, shared, config)
        configuration, refused = with_answers(configuration, ask)
        ranks = ranks_here(configuration) if shared is None else shared.size()
        own = None if shared is None else caller.with_own_gpu(shared)
        plans = plan(configuration, devices.free_bytes(device), ranks, own)
        plans += refused
        if shared is None:
            _must_travel(plans)
            tables = _measured(configuration, config, plans, Path(folder), progress=progress)
        else:
            tables = _on_callers_ranks(configuration, config, plans, Path(folder), shared)
        if output_dir is None:
            _log_first_traceback(Path(folder), tables[0])
    order = {each.case.id: number for number, each in enumerate(plans)}
    tables = [rows[rows["case_id"].isin(order)].reset_index(drop=True) for rows in tables]
    tables[0] = tables[0].sort_values("case_id", key=lambda ids: ids.map(order), kind="stable", ignore_index=True)
    return Run(*tables)


def _must_travel(plans: Sequence[Planned]) -> None:
    """Raise ConfigError for a function that cannot go to the processes of its ranks, which are started here."""
    variants = {each.case.variant for each in plans if each.unsupported is None and each.case.world_size > 1}
    for text in (str(dict(variant.options).get("fn", "")) for variant in variants):
        if plugins.is_handed_over(text):
            plugins.check_travels(text)


def _measured(
    configuration: Configuration, config: Mapping[str, Any], plans: Sequence[Planned], folder: Path,
    launched: Launched | None = None, progress: bool = False,
) -> list[pd.DataFrame]:  # fmt: skip
    """Measure what is planned; return the folder's tables. launched: the ranks that this process is the first of."""
    with opened(folder, configuration.device):
        outcome = runs.execute(configuration, config, plans, folder, ["(Python)"], launched, quiet=not progress)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return [table.read_results(folder), *(table.read_side(folder, name) for name in SIDE)]


def _on_callers_ranks(
    configuration: Configuration, config: Mapping[str, Any], plans: Sequence[Planned], folder: Path,
    group: dist.ProcessGroup,
) -> list[pd.DataFrame]:  # fmt: skip
    """Take part in what the caller's processes measure together; return the first one's tables."""
    sizes = [each.case.world_size for each in plans if each.unsupported is None]
    asked = task_of(configuration, folder, plans, group.size(), "caller")
    with caller.as_ranks(group, sizes, configuration.device, asked.digest, asked.shared) as ranks:
        task = replace(asked, folder=caller.share_folder(folder, ranks))
        if ranks.rank > 0:
            rank_loop.follow(task, ranks)
            return caller.share_tables([pd.DataFrame()] * (1 + len(SIDE)), ranks)
        return caller.share_tables(_measured(configuration, config, plans, folder, Launched(ranks, task)), ranks)


def _asked_on(group: dist.ProcessGroup, config: Mapping[str, Any], tiny: Configuration) -> pd.DataFrame:
    """Return on each of the caller's processes the table of a run that is not kept."""
    with TemporaryDirectory(prefix="accuracy-") as folder:
        return _on_callers_ranks(tiny, config, runs.planned(tiny), Path(folder), group)[0]


def _log_first_traceback(folder: Path, results: pd.DataFrame) -> None:
    """Log once what the first case that failed raised, where nobody keeps the folder; nothing where all of a dtype's
    cases failed and others' did not, as in a function that refuses it."""
    measured = {*results.loc[results["status"] == table.OK, "dtype"]}
    if measured and not (results["status"].eq(table.FAILED) & results["dtype"].isin(measured)).any():
        return
    texts = sorted((folder / table.TRACEBACKS).glob("*.txt"), key=lambda path: path.stat().st_mtime_ns)
    if texts:
        more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
        logging.getLogger("accuracy").warning("accuracy: a case failed%s:\n%s", more, texts[0].read_text().rstrip())
