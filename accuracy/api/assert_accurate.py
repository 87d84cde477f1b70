"""For other projects' test suites: `assert_accurate` measures an attention function on the ranks it runs on.

    from accuracy import assert_accurate

    def test_my_attention_is_accurate():
        assert_accurate(my_attention, sharding="zigzag")

Under plain pytest that is one rank; under `torchrun --nproc-per-node 4 -m pytest` four.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch.distributed as dist

from accuracy.api.request import Function, request
from accuracy.config.read import DEVICES
from accuracy.core.errors import unknown
from accuracy.core.probes import REFERENCE_ERROR
from accuracy.execute.plan import plan
from accuracy.execute.ranks.caller import callers_rank, measure
from accuracy.execute.settle import read_settled
from accuracy.gate.rules import Limits
from accuracy.results.table import ALL_RANKS, OK, UNSUPPORTED, Row
from accuracy.runtime import device as devices

LIMITS = Limits()


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

    fn(q, k, v, *, causal, softmax_scale, group) -> out or (out, lse) and the arguments: as in `accuracy.measure`, but
    for: group: default, all ranks of torch.distributed, or those of torchrun, or this process alone; limits: what is
    allowed (`accuracy.gate.rules`); problem: by default causal, 512 tokens a rank, 8 heads over 2 of 64. fn runs with
    the arithmetic switches that the process has.

    Returns the rows, the same on every rank. Raises AssertionError on every rank, with the worst rank, tensor and
    position, and ConfigError, a ValueError, for a wrong argument.
    """
    rows = rows_of(
        fn, dtype=dtype, seed=seed, inputs=inputs, kernel=kernel, sharding=sharding, layout=layout, device=device,
        group=group, **problem,
    )  # fmt: skip
    complaint = complaint_about(rows, limits)
    if complaint is not None:
        raise AssertionError(complaint)
    return pd.DataFrame(rows)


def rows_of(
    fn: Function, *, device: str = "auto", group: dist.ProcessGroup | None = None, **arguments: Any
) -> list[Row]:
    """What `assert_accurate` judges. Raises ConfigError."""
    if device not in DEVICES:
        raise unknown("device", device, DEVICES)
    device = devices.choose(device)
    ranks = callers_rank(group, device)
    defaults = {"seqlen": 512 * ranks.size, "heads": 8, "heads_kv": 2, "head_dim": 64, "device": device}
    config = request(fn, defaults | arguments) | {"world_size": ranks.size}
    plans = plan(read_settled(config), free_bytes=None)
    return [row for each in plans for row in measure(fn, each.case, ranks)]


def complaint_about(rows: Sequence[Row], limits: Limits) -> str | None:
    """What is wrong with the rows, the worst tensor of the first case that has one; None where nothing is."""
    cases = dict.fromkeys(row["case_id"] for row in rows)
    found = (_complaint([row for row in rows if row["case_id"] == case_id], limits) for case_id in cases)
    return next((each for each in found if each is not None), None)


def _complaint(rows: Sequence[Row], limits: Limits) -> str | None:
    failed = [row for row in rows if row["status"] not in (OK, UNSUPPORTED)]
    if failed:
        return f"{_named(failed[0])}: {failed[0]['reason']}"
    judged = [row for row in rows if row["status"] == OK and row["tensor"] != "delta"]  # delta follows from out
    over = [row for row in judged if _times(row) > _limit(row, limits)]
    if not over:
        return None
    worst = max(over, key=lambda row: _times(row) / _limit(row, limits))["tensor"]
    others = sorted({row["tensor"] for row in over} - {worst})
    lines = _described([row for row in judged if row["tensor"] == worst], limits)
    return "\n".join([*lines, *([f"also over the limit: {', '.join(others)}"] if others else [])])


def _described(rows: list[Row], limits: Limits) -> list[str]:
    """A tensor's rows in words: over all ranks, on its worst rank, at its worst element."""
    (whole,) = (row for row in rows if row["rank"] == ALL_RANKS)
    ranks = [row for row in rows if row["rank"] != ALL_RANKS]
    worst, place = max(ranks, key=_times), max(ranks, key=lambda row: float(row["error_max"]))
    kernel = whole["kernel"]
    return [
        f"{_named(whole)}: {whole['tensor']} is {_times(whole):.3g} times as far from float64 as {kernel} run once"
        f" (allowed: {_limit(whole, limits):g}), on rank {worst['rank']} {_times(worst):.3g} times"
        f" ({_limit(worst, limits):g})",
        f"relative error {whole['error_rel']:.3g}; of {kernel} {whole['single_device_rel']:.3g}; of the reference"
        f" rounded {whole['floor_rel']:.3g}",
        f"largest error {place['error_max']:.3g} on rank {place['rank']}, at batch {place['worst_batch']}, token"
        f" {place['worst_token']}, head {place['worst_head']}, dim {place['worst_dim']}",
    ]


def _limit(row: Row, limits: Limits) -> float:
    return limits.of(row["tensor"], whole=row["rank"] == ALL_RANKS)


def _times(row: Row) -> float:
    """A row's error over single device's, or over what no implementation can be held to: the floor and the reference's
    own."""
    return float(row["error_rel"]) / max(row["single_device_rel"], row["floor_rel"], REFERENCE_ERROR)


def _named(row: Row) -> str:
    return (
        f"{row['variant']} ({row['dtype']}, {row['world_size']} ranks, {row['sharding']}, {row['seqlen']} tokens,"
        f" {row['heads']}/{row['heads_kv']} heads of {row['head_dim']}, {row['mask']}, seed {row['seed']})"
    )
