"""`accuracy.measure`: how far are attention variants, or functions of one's own, from float64?"""

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from accuracy.api.request import Subjects, request
from accuracy.api.tables import path_of
from accuracy.execute import run as runs
from accuracy.execute.folder import opened
from accuracy.execute.plan import plan, ranks_here
from accuracy.execute.settle import read_settled
from accuracy.results import table
from accuracy.runtime import arithmetic
from accuracy.runtime import device as devices


@dataclass(frozen=True)
class Run:
    """What was measured: the table, and every ring step of the cases that were traced."""

    results: pd.DataFrame
    steps: pd.DataFrame
    hypotheses: pd.DataFrame
    boundaries: pd.DataFrame
    places: pd.DataFrame
    logprobs: pd.DataFrame


def measure(
    variant: Subjects,
    *,
    dtype: Any = "bfloat16",
    world_size: Any = 1,
    seed: Any = 0,
    inputs: Any = "gaussian",
    kernel: Any = "auto",
    world: str = "simulated",
    sharding: str = "contiguous",
    layout: str = "bshd",
    device: str = "auto",
    output_dir: str | Path | None = None,
    case_seconds: float | None = None,
    **problem: Any,
) -> pd.DataFrame:
    """Measure variants or functions against float64 and against their kernel on a single device.

    variant: names (`"ring"`; `accuracy --help` lists them), functions, a list of both, or functions by name in a dict.
    A function is called as::

        fn(q, k, v, *, causal, softmax_scale, group) -> out or (out, lse)

    with one rank's shards of q (B, S/W, H, D), k and v (B, S/W, Hk, D) in the case's dtype; it returns out, shaped like
    q and in its dtype, and lse (B, H, S/W) in natural logarithms, in any floating dtype, if it has one. group: the
    ranks' `torch.distributed` group, also of one rank. sharding: which tokens a rank of the function gets (contiguous,
    zigzag, striped); layout: how it takes its tensors (bshd, bhsd, kvpacked, qkvpacked, varlen). On several ranks it
    runs in processes that are started here.

    Each of dtype (bfloat16, float16, float32, float64, or torch's), world_size, seed, inputs, kernel and problem may be
    a list: every combination is measured. inputs, kernel: names, or options by name in a dict. world: `simulated` (all
    ranks of a variant in this process) or `processes`. device: auto, cpu or cuda. output_dir: a folder to keep; what it
    has already is not measured again. case_seconds: after which a case is stopped and failed; by default an hour, and
    more where it is large. problem: batch, seqlen (of all ranks), seqlen_q, heads, heads_kv, head_dim, mask (causal,
    full), window, documents, softmax_scale, softcap, head_dim_v, sinks, padding, dropout.

    Returns one row per case, tensor and rank (-1: all), of columns that `accuracy.columns()` explains. A case that
    raised is a row with status `failed` and the reason. Raises ConfigError, a ValueError, in one line.
    """
    arguments = {
        "dtype": dtype, "world_size": world_size, "seed": seed, "inputs": inputs, "kernel": kernel, "world": world,
        "sharding": sharding, "layout": layout, "device": device, "case_seconds": case_seconds,
    }  # fmt: skip
    return execute(request(variant, arguments | problem), output_dir).results


def execute(config: dict[str, Any], output_dir: str | Path | None) -> Run:
    """Measure a configuration in this process, and in those of its ranks. Raises ConfigError."""
    if output_dir is not None:
        output_dir = path_of("output_dir", output_dir)
    configuration = read_settled(config)
    with arithmetic.exact(), arithmetic.computing_with(configuration.threads, configuration.device):
        device = configuration.device
        plans = plan(configuration, devices.free_bytes(device), ranks_here(device))
        place = {each.case.id: number for number, each in enumerate(plans)}
        with TemporaryDirectory(prefix="accuracy-") if output_dir is None else nullcontext(output_dir) as folder:
            with opened(Path(folder), device):
                outcome = runs.execute(configuration, config, plans, Path(folder), ["(Python)"], quiet=True)
            if outcome.interrupted:
                raise KeyboardInterrupt
            if output_dir is None:
                _tell_first_traceback(Path(folder))
            reads = (
                table.read_results, table.read_steps, table.read_hypotheses, table.read_boundaries, table.read_places,
                table.read_logprobs,
            )  # fmt: skip
            results, *more = (read(Path(folder)) for read in reads)
    results, *more = (rows[rows["case_id"].isin(place)] for rows in (results, *more))
    results = results.sort_values("case_id", key=lambda ids: ids.map(place), kind="stable", ignore_index=True)
    return Run(results, *(rows.reset_index(drop=True) for rows in more))


def _tell_first_traceback(folder: Path) -> None:
    """Of a folder that nobody keeps: what the first case that failed raised, once."""
    texts = sorted((folder / table.TRACEBACKS).glob("*.txt"), key=lambda path: path.stat().st_mtime_ns)
    if texts:
        more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
        logging.getLogger("accuracy").warning("accuracy: a case failed%s:\n%s", more, texts[0].read_text().rstrip())
