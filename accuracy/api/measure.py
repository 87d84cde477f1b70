"""`accuracy.measure`: how far are attention variants, or functions of one's own, from float64?"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.api.request import Subjects, request
from accuracy.execute import run as runs
from accuracy.execute.plan import plan
from accuracy.execute.settle import read_settled
from accuracy.results import table
from accuracy.runtime import arithmetic
from accuracy.runtime import device as devices


@dataclass(frozen=True)
class Run:
    """What was measured: the table, and every ring step of the cases that were traced."""

    results: pd.DataFrame
    steps: pd.DataFrame


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
    **problem: Any,
) -> pd.DataFrame:
    """Measure variants or functions against float64 and against their kernel on a single device.

    variant: names (`"ring"`; `accuracy --help` lists them), functions, a list of both, or functions by name in a dict.
    A function is called as

        fn(q, k, v, *, causal, softmax_scale, group) -> out or (out, lse)

    with one rank's shards of q (B, S/W, H, D), k and v (B, S/W, Hk, D) in the case's dtype; it returns out, shaped like
    q, and lse (B, H, S/W) in natural logarithms if it has one. Gradients come from autograd. group: the ranks'
    `torch.distributed` group, None on one rank. sharding: which tokens a rank of the function gets (contiguous, zigzag,
    striped); layout: how it takes its tensors (bshd, bhsd, kvpacked, qkvpacked, varlen).

    Each of dtype, world_size, seed, inputs, kernel and problem may be a list: every combination is measured.
    dtype: bfloat16, float16, float32, float64, or torch's. seed: of the inputs. inputs, kernel: names, or options by
    name in a dict. world: `simulated` (all ranks of a variant in this process) or `processes`. Functions run in this
    process on one rank, and in processes that are started here on several. device: auto, cpu or cuda. output_dir: a
    folder to keep; what it has already is not measured again. problem: batch, seqlen (of all ranks), seqlen_q, heads,
    heads_kv, head_dim, mask (causal, full), window, documents, softmax_scale, softcap.

    Returns one row per case, tensor and rank (-1: all); `accuracy.columns()` says what each column is. A case that
    raised is a row with status `failed` and the reason. torch's settings are as before afterwards. Raises ConfigError,
    a ValueError, in one line for an argument that cannot be.
    """
    arguments = {
        "dtype": dtype, "world_size": world_size, "seed": seed, "inputs": inputs, "kernel": kernel, "world": world,
        "sharding": sharding, "layout": layout, "device": device,
    }  # fmt: skip
    return execute(request(variant, arguments | problem), output_dir).results


def execute(config: dict[str, Any], output_dir: str | Path | None) -> Run:
    """Measure a configuration in this process, and in those of its ranks. Raises ConfigError."""
    configuration = read_settled(config)
    with arithmetic.exact(), arithmetic.computing_with(configuration.threads, configuration.device):
        ranks = devices.count() if configuration.device == "cuda" else None
        plans = plan(configuration, devices.free_bytes(configuration.device), ranks)
        with _folder(output_dir, configuration.device) as folder:
            outcome = runs.execute(configuration, config, plans, folder, ["(Python)"], quiet=True)
            if outcome.interrupted:
                raise KeyboardInterrupt
            return _read(folder, [each.case.id for each in plans])


@contextmanager
def _folder(output_dir: str | Path | None, device: str) -> Iterator[Path]:
    if output_dir is None:
        with tempfile.TemporaryDirectory(prefix="accuracy-") as folder:
            yield Path(folder)
    else:
        runs.open_folder(Path(output_dir), device)
        yield Path(output_dir)


def _read(folder: Path, planned: list[str]) -> Run:
    """The planned cases, in their order."""
    place: Mapping[str, int] = {case_id: number for number, case_id in enumerate(planned)}
    results, steps = table.read_results(folder), table.read_steps(folder)
    results = results[results["case_id"].isin(planned)]
    results = results.sort_values("case_id", key=lambda ids: ids.map(place), kind="stable", ignore_index=True)
    return Run(results, steps[steps["case_id"].isin(planned)].reset_index(drop=True))
