"""For other projects' test suites: `assert_accurate(my_attention)` measures a function on the ranks it runs on.

Under plain pytest that is one rank; under `torchrun --nproc-per-node 4 -m pytest` four.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch.distributed as dist

from accuracy.api.request import Function, request
from accuracy.config.read import DEVICES
from accuracy.core.dtype import DTYPES, rounding_band
from accuracy.core.errors import ConfigError, unknown
from accuracy.core.probes import REFERENCE_ERROR
from accuracy.execute.plan import plan
from accuracy.execute.ranks.caller import callers_rank, measure
from accuracy.execute.settle import read_settled
from accuracy.gate.rules import Limits
from accuracy.results.table import ALL_RANKS, OK, UNSUPPORTED, Row
from accuracy.runtime import device as devices
from accuracy.verdict.rule import factor

LIMITS = Limits()
SHORT_SUMS = "torch_flash"


def assert_accurate(
    fn: Function,
    *,
    dtype: Any = "bfloat16",
    seed: Any = 0,
    inputs: Any = "gaussian",
    kernel: Any = "auto",
    sharding: str = "contiguous",
    layout: str = "bshd",
    device: str = "auto",
    group: dist.ProcessGroup | None = None,
    limits: Limits = LIMITS,
    **problem: Any,
) -> pd.DataFrame:
    """Measure fn against float64 and against a single-device kernel in the same dtype, on the ranks of the caller.

    fn and the arguments: as in `accuracy.measure`, but for: group: default, all ranks of torch.distributed, or those of
    torchrun, or this process alone; limits: what is allowed (`accuracy.gate.rules`); problem: by default causal, 512
    tokens a rank, 8 heads over 2 of 64. fn runs with the arithmetic switches that the process has.

    Errors are compared with those of a single-device kernel, on a CPU one that sums in float32. A tensor that is a
    factor times the reference fails where the ratio of errors does not show it (1.001 in bfloat16). Returns the rows.
    On every rank alike, raises AssertionError, on the first with the worst rank, tensor and position in words; the
    error's `results` are the rows. Raises ConfigError, a ValueError, for a wrong argument.
    """
    __tracebackhide__ = True
    try:
        rows = rows_of(
            fn, dtype=dtype, seed=seed, inputs=inputs, kernel=kernel, sharding=sharding, layout=layout, device=device,
            group=group, **problem,
        )  # fmt: skip
    except ConfigError as error:
        raise ConfigError(str(error)) from None  # one line, without what found it
    results = pd.DataFrame(rows)
    for case_id in dict.fromkeys(row["case_id"] for row in rows):
        complaint = _complaint([row for row in rows if row["case_id"] == case_id], limits)
        if complaint is not None:
            rank = dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0
            failed = AssertionError(complaint if rank <= 0 else "not accurate: rank 0 says where")
            failed.results = results  # type: ignore[attr-defined]
            raise failed
    return results


def rows_of(
    fn: Function, *, device: str = "auto", group: dist.ProcessGroup | None = None, **arguments: Any
) -> list[Row]:
    """What `assert_accurate` judges. Raises ConfigError."""
    if not callable(fn):
        raise ConfigError(f"{fn!r} is no function; give fn(q, k, v, *, causal, softmax_scale, group)")
    if device not in DEVICES:
        raise unknown("device", device, DEVICES)
    device = devices.choose(device)
    ranks = callers_rank(group, device)
    defaults = {"seqlen": 512 * ranks.size, "heads": 8, "heads_kv": 2, "head_dim": 64, "device": device}
    config = request(fn, defaults | arguments) | {"world_size": ranks.size}
    plans = plan(read_settled(config), free_bytes=None)
    return [row for each in plans for row in measure(fn, each.case, ranks)]


def _complaint(rows: Sequence[Row], limits: Limits) -> str | None:
    """What is wrong with a case's worst tensor: over all ranks, on its worst rank, at its worst element."""
    failed = [row for row in rows if row["status"] not in (OK, UNSUPPORTED)]
    if failed:
        return f"{_named(failed[0])}: {failed[0]['reason']}"
    judged = [row for row in rows if row["status"] == OK and row["tensor"] != "delta"]  # delta follows from out
    over = [row for row in judged if _times(row) > _limit(row, limits)]
    if not over:
        return next((_scaled(row) for row in judged if factor.is_scaled(row)), None)
    tensor = max(over, key=lambda row: _times(row) / _limit(row, limits))["tensor"]
    (whole,) = (row for row in judged if row["tensor"] == tensor and row["rank"] == ALL_RANKS)
    ranks = [row for row in judged if row["tensor"] == tensor and row["rank"] != ALL_RANKS]
    worst, place = max(ranks, key=_times), max(ranks, key=lambda row: float(row["error_max"]))
    others = sorted({row["tensor"] for row in over} - {tensor})
    lines = [
        f"{_named(whole)}: {tensor} is {_times(whole):.3g} times as far from float64 as {whole['kernel']} run once"
        f" (allowed: {_limit(whole, limits):g}), on rank {worst['rank']} {_times(worst):.3g} times"
        f" ({_limit(worst, limits):g})",
        "relative error {error_rel:.3g}; of {kernel} {single_device_rel:.3g}; of the reference rounded"
        " {floor_rel:.3g}".format_map(whole),
        "largest error {error_max:.3g} on rank {rank}, at batch {worst_batch}, token {worst_token}, head {worst_head},"
        " dim {worst_dim}".format_map(place),
    ]
    if whole["dtype"] == "float64" and all(
        row["error_rel"] <= rounding_band(row["tensor"], "float32") for row in judged
    ):
        lines.append("every error is of float32's size: what computes in float32 inside is right in a case of float32")
    elif tensor in ("dk", "dv") and whole["kernel"] == "eager" and DTYPES[whole["dtype"]].bytes == 2:
        lines.append(f"torch's own CPU kernel sums dk and dv in 16 bits; kernel={SHORT_SUMS!r} compares with it")
    return "\n".join([*lines, *([f"also over the limit: {', '.join(others)}"] if others else [])])


def _scaled(row: Row) -> str:
    where = "" if row["rank"] == ALL_RANKS else f" on rank {row['rank']}"
    return (
        f"{_named(row)}: {row['tensor']}{where} is {1 + row['error_gain']:.7g} times the reference, standard error"
        f" {row['error_gain_se']:.1g}: a factor, not rounding"
    )


def _limit(row: Row, limits: Limits) -> float:
    return limits.of(row["tensor"], whole=row["rank"] == ALL_RANKS)


def _times(row: Row) -> float:
    """A row's error over single device's, or over the floor and the reference's own where these are larger."""
    return float(row["error_rel"]) / max(row["single_device_rel"], row["floor_rel"], REFERENCE_ERROR)


def _named(row: Row) -> str:
    return (
        "{variant} ({dtype}, {world_size} ranks, {sharding}, {seqlen} tokens, {heads}/{heads_kv} heads of {head_dim},"
        " {mask}, seed {seed})".format_map(row)
    )
