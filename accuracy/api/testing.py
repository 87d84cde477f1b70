"""For other projects' test suites: `assert_accurate` measures an attention function on the ranks it runs on.

    from accuracy.api.testing import assert_accurate

    def test_my_attention_is_accurate():
        assert_accurate(my_attention, sharding="zigzag")

Under plain pytest that is one rank; under `torchrun --nproc-per-node 4 -m pytest` four.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from accuracy.config.problem import problem_of
from accuracy.config.read import DEVICES
from accuracy.core import plugins
from accuracy.core.case import Case, Part, Variant
from accuracy.core.dtype import FORMATS
from accuracy.core.errors import ConfigError, unknown
from accuracy.core.paths import PACKAGE
from accuracy.core.precision import Precision
from accuracy.core.probes import REFERENCE_ERROR
from accuracy.core.sharding import SHARDINGS
from accuracy.core.sharding import unsupported as cannot_cut
from accuracy.execute.plan import resolve_kernel
from accuracy.execute.ranks.caller import callers_rank, measure
from accuracy.gate.rules import Limits
from accuracy.results.table import ALL_RANKS, OK, UNSUPPORTED, Row
from accuracy.runtime import device as devices
from accuracy.runtime.layout import LAYOUTS

KERNELS = ("flash_attn", "torch_flash", "eager")
LIMITS = Limits()
SCHEDULE = Part("callable", "accuracy.variant.callable")


def assert_accurate(
    fn: Callable[..., Any],
    *,
    sharding: str = "contiguous",
    layout: str = "bshd",
    dtype: str | torch.dtype = "bfloat16",
    causal: bool = True,
    softmax_scale: float | None = None,
    batch: int = 1,
    seqlen: int | None = None,
    heads: int = 8,
    heads_kv: int = 2,
    head_dim: int = 64,
    inputs: str = "gaussian",
    seed: int = 0,
    kernels: Sequence[str] = KERNELS,
    device: str = "auto",
    group: dist.ProcessGroup | None = None,
    limits: Limits = LIMITS,
    record: Callable[[list[Row]], None] | None = None,
) -> pd.DataFrame:
    """Measure fn against float64 and against a single-device kernel in the same dtype; its rows, the same on every
    rank.

    fn(q, k, v, *, causal, softmax_scale, group) -> out or (out, lse), as `accuracy.variant.callable` says; gradients
    come from autograd. sharding: which tokens a rank gets; seqlen: over all ranks, 512 a rank by default; kernels: the
    first that can serve is the single device's; group: default, all ranks of torch.distributed; limits: what is allowed
    (`accuracy.gate.rules`); record: is given the rows before they are judged.

    Raises AssertionError on every rank, with the worst rank, tensor and position, and ConfigError for a wrong argument.
    """
    device = devices.choose(_known("device", device, DEVICES))
    ranks = callers_rank(group, device)
    case = _case(
        name=getattr(fn, "__name__", type(fn).__name__),
        problem={
            "batch": batch, "seqlen": seqlen or 512 * ranks.size, "heads": heads, "heads_kv": heads_kv,
            "head_dim": head_dim, "mask": "causal" if causal else "full", "softmax_scale": softmax_scale,
        },
        inputs=inputs, seed=seed, dtype=str(dtype).removeprefix("torch."), cut=sharding, layout=layout,
        kernels=kernels, size=ranks.size, device=device,
    )  # fmt: skip
    rows = measure(fn, case, ranks)
    if record is not None:
        record(rows)
    complaint = complaint_about(rows, limits)
    if complaint is not None:
        raise AssertionError(complaint)
    return pd.DataFrame(rows)


def complaint_about(rows: Sequence[Row], limits: Limits) -> str | None:
    """What is wrong with a case's rows, its worst cell first; None where nothing is."""
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
        f"relative error {whole['error_rel']:.3g}; of {kernel} {whole['single_device_rel']:.3g}; of the"
        " true answer rounded"
        f" {whole['floor_rel']:.3g}",
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


def _case(
    *, name: str, problem: dict[str, Any], inputs: str, seed: int, dtype: str, cut: str, layout: str,
    kernels: Sequence[str], size: int, device: str,
) -> Case:  # fmt: skip
    _known("dtype", dtype, FORMATS)
    _known("sharding", cut, SHARDINGS)
    _known("layout", layout, LAYOUTS)
    reason = cannot_cut(cut, problem["seqlen"], size)
    if reason is not None:
        raise ConfigError(reason)
    variant = Variant(name, cut, SCHEDULE, SCHEDULE, (("layout", layout),))
    case = Case(
        problem=problem_of(problem), inputs=_part("inputs", inputs), seed=seed, dtype=dtype, variant=variant,
        kernel=Part("auto", ",".join(_part("kernel", kernel).source for kernel in kernels)),
        forward_precision=Precision(), backward_precision=Precision(), precision_text="", world="processes",
        world_size=size, device=device,
    )  # fmt: skip
    return resolve_kernel(case)


def _part(kind: str, name: str) -> Part:
    _known(kind, name, sorted(path.stem for path in (PACKAGE / kind).glob("[a-z]*.py") if path.stem != "base"))
    source = f"accuracy.{kind}.{name}"
    return Part(name, source, plugins.default_options(plugins.load(source)))


def _known(what: str, given: str, allowed: Iterable[str]) -> str:
    if given not in tuple(allowed):
        raise unknown(what, given, tuple(allowed))
    return given
