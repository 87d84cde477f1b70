"""For other projects' test suites: `assert_accurate(my_attention)` measures a function on the ranks that it runs on.

Under `torchrun --nproc-per-node 4 -m pytest` these are the processes of the launch; under plain pytest 1 to 4 ranks are
started for a function that shares its work.
"""

import inspect
import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pandas as pd
import pyarrow as pa
import torch.distributed as dist
from typing_extensions import Unpack

from accuracy.api.measure import execute
from accuracy.api.operators import Watched, have_same_errors
from accuracy.api.request import Dtypes, Function, Problem, asked, plain, request
from accuracy.config.checks import values_of
from accuracy.config.resolve import EVERYWHERE, OF_FUNCTIONS
from accuracy.core.dtype import (
    ARITHMETIC,
    DTYPES,
    FORMATS,
    PRODUCTS,
    REFERENCE_ERROR,
    accumulation_dtype,
    computed_in,
    rounding_band,
)
from accuracy.core.errors import OF_PROBLEM, ConfigError, RanksEnded, entry
from accuracy.core.fields import arithmetic_of
from accuracy.gate.rules import Limits
from accuracy.results.table import ALL_RANKS, FAILED, OF_ALL, OK, RESULTS_SCHEMA, TOO_FEW_RANKS, UNSUPPORTED, Row
from accuracy.runtime import arithmetic
from accuracy.runtime import device as devices
from accuracy.runtime.collectives import may_share
from accuracy.verdict.diagnosis import too_little
from accuracy.verdict.floor import LEVEL
from accuracy.verdict.inside import cut_off
from accuracy.verdict.label import ONE_RANK
from accuracy.verdict.rule import factor
from accuracy.verdict.words import ONE_RANK_ONLY, not_on

LIMITS = Limits()
SHORT_SUMS = "torch_flash"
SHORT_SUMS_SAID = "dk and dv are summed in 16 bits, by torch's own CPU kernel; kernel='eager' refuses that"
IN_16_BITS = {"eager": {"compute_dtype": "input"}}
IN_16_BITS_SAID = "scores, weights or sums are kept in 16 bits; kernel='eager' or arithmetic='float32' refuses that"
SHORT = {name for name, dtype in DTYPES.items() if dtype.bytes == 2}
NAME = "assert_accurate"
OPERANDS = 4.0
"""Roundings of operands, all one way at most, between q, k, v, dout and a gradient."""
TOKENS, TOKENS_A_RANK = 512, 192
"""Of a problem whose length nobody gave: at least so many, and as many as all numbers of ranks can share."""


@entry(OF_PROBLEM)
def assert_accurate(
    fn: Function | str, *, dtype: Dtypes = "bfloat16", world_size: Any = None, seed: Any = 0, inputs: Any = "gaussian",
    kernel: Any = "auto", sharding: str = "contiguous", layout: str = "bshd", device: str = "auto",
    group: dist.ProcessGroup | None = None, limits: Limits = LIMITS, case_seconds: float | None = None,
    arithmetic: str | None = None, **problem: Unpack[Problem],
) -> pd.DataFrame:  # fmt: skip
    """Measure fn against float64 and a single-device kernel in the same dtype, and fail where it is further off.

    fn and the arguments: as in `accuracy.measure`, but for: fn: one, a function or the name of a variant, as of an
    installed package's; world_size: default, 1, 2, 3 and 4 ranks for a function that shares its work (it takes a group)
    and for a variant, else 1; group: whose processes are the ranks, default all ranks of
    torch.distributed, or those of torchrun, which then all call this, with their own number of ranks beside 1 to 4; an
    alone process starts the ranks. limits: what is allowed (`accuracy.gate.rules`); problem: by default causal, 512
    tokens or more, 8 heads over 2 of 64. fn runs with the arithmetic switches that the process has.

    arithmetic: what the products of a float32 case may be in. `float32`; `tf32`; None: as `tf32`, and a UserWarning
    says so where a function is found to compute in it, or to keep scores, weights or sums in 16 bits: it is right in
    float32, with the same torch operators on one rank, and no worse than attention that is in 16 bits throughout.

    Errors are compared with those of a single-device kernel, on a CPU one that sums in float32. Torch's own CPU kernel
    sums dk and dv in 16 bits: a function with its bits of out and dq on one rank is compared with it, and warned of. A
    tensor that is a factor times the reference fails where the ratio of errors does not show it (1.001 in bfloat16). A
    function that shares its work and could have one rank alone fails; world_size=1 says that one is meant. Returns the
    rows. On every rank alike, raises AssertionError, on rank 0 with the worst rank, tensor and position in words; its
    `results` are the rows. Raises ConfigError, a ValueError, for an argument that cannot be, or that no case could use.
    """
    __tracebackhide__ = True
    check_limits(limits)
    try:
        results = results_of(fn, group=group, **asked(locals()))
    except ConfigError as error:
        raise ConfigError(str(error)) from None  # one line, without what found it
    except RanksEnded as error:
        raise AssertionError(str(error)) from None
    complaint = not_measured(results) or _first(results, limits)
    if complaint is not None and may_have_short_sums(results, limits):
        again = of_torch_s_own(fn, group=group, **asked(locals()))
        if again is not None and _first(again, limits) is None:
            results, complaint = again, None
            warnings.warn(SHORT_SUMS_SAID, stacklevel=3)
        else:
            complaint += f"\ntorch's own CPU kernel sums dk and dv in 16 bits; kernel={SHORT_SUMS!r} compares with it"
    if complaint is not None and (again := in_16_bits(fn, results, limits, group=group, **asked(locals()))) is not None:
        results, complaint = again, None
        warnings.warn(IN_16_BITS_SAID, stacklevel=3)
    if complaint is not None:
        rank = dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0
        failed = AssertionError(complaint if rank <= 0 else "not accurate: rank 0 says where")
        failed.results = results  # type: ignore[attr-defined]
        raise failed
    for words in dict.fromkeys(results["options"].map(arithmetic_of)) if arithmetic is None else ():
        if words in PRODUCTS:
            name = results["variant"].iloc[0]
            warnings.warn(f"{name} computes {PRODUCTS[words]}; arithmetic='float32' refuses it", stacklevel=3)
    return results


KEYWORDS = (*OF_PROBLEM, *(set(inspect.signature(assert_accurate).parameters) - {"fn", "seed", "limits", "problem"}))
"""The keywords that the fixture `accuracy_gate` passes to `results_of`. Its `seeds` and `limits` it uses itself."""


def check_limits(limits: Limits | None) -> None:
    """Raise ConfigError for what is no `Limits`."""
    if limits is not None and not isinstance(limits, Limits):
        raise ConfigError(f"limits={limits!r}; allowed: accuracy.gate.rules.Limits(all_ranks=1.5, ...)")


def results_of(
    fn: Function | str, *, world_size: Any = None, device: str = "auto", group: dist.ProcessGroup | None = None,
    **arguments: Any,
) -> pd.DataFrame:  # fmt: skip
    """Return the table that `assert_accurate` judges. Raises ConfigError."""
    if not callable(fn) and not isinstance(fn, str):
        raise ConfigError(f"{fn!r} is no function; give fn(q, k, v, *, causal, softmax_scale) or a variant's name")
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise ConfigError(f"group={group!r}; allowed: a group of torch.distributed, or None")
    alone = world_size is None and callable(fn) and not may_share(fn)
    world_size = 1 if alone else plain(world_size)
    if world_size is None:
        sizes = OF_FUNCTIONS if group is None else [*OF_FUNCTIONS, group.size()]
    else:
        sizes = [*values_of(world_size)]
    defaults = {"seqlen": _length(sizes), "heads": 8, "heads_kv": 2, "head_dim": 64}
    keys = {"name": NAME, "unusable": "record", "given_keys": EVERYWHERE}
    arguments |= {"world_size": world_size, "device": devices.choose(device)}
    config = request(fn, arguments, keys=keys, defaults=defaults)
    return execute(config, None, group, arithmetic.switches()).results


def _length(sizes: Sequence[Any]) -> int:
    """Return a number of tokens that each of these numbers of ranks can share, in two chunks a rank."""
    ranks = [size for size in sizes if type(size) is int and size > 0]
    unit = math.lcm(*(2 * size for size in ranks))
    return math.ceil(max(TOKENS, TOKENS_A_RANK * max(ranks, default=1)) / unit) * unit


def not_measured(results: pd.DataFrame) -> str | None:
    """Return why a table says too little of a function to call it healthy, or None."""
    if (results["status"] == UNSUPPORTED).all():
        return f"not measured: {results['reason'].iloc[0]}"
    if (results["status"] == FAILED).any():
        return None  # a complaint of its own
    label, missing = too_little(results)
    if label is None:
        return None
    reason = next(iter(missing.values()))
    if label == ONE_RANK:
        more = "" if reason.startswith(TOO_FEW_RANKS) else f" ({reason})"
        return f"{ONE_RANK_ONLY}; give world_size=1 if that is meant{more}"
    here = sorted(set(results.loc[results["status"] == OK, "world_size"]))
    return f"{not_on(missing)} ({reason}); give world_size={here} if these are meant"


def rows_in(results: pd.DataFrame) -> list[Row]:
    """Return the rows of a table as a run writes them: without derived columns, None where a value is missing."""
    names = [name for name in RESULTS_SCHEMA.names if name in results]
    schema = pa.schema([RESULTS_SCHEMA.field(name) for name in names])
    return pa.Table.from_pandas(results[names], schema, preserve_index=False).to_pylist()


def may_have_short_sums(results: pd.DataFrame, limits: Limits) -> bool:
    """Return whether all that is over the limits is a sum over queries, in 16 bits on a CPU, compared with float32
    sums."""
    over = _over(_judged(rows_in(results)), limits)
    return bool(over) and all(
        row["tensor"] in ("dk", "dv") and row["kernel"] == "eager" and row["dtype"] in SHORT
        and row["device"] == devices.name("cpu") for row in over
    )  # fmt: skip


def of_torch_s_own(fn: Function | str, *, kernel: Any = "auto", **how: Any) -> pd.DataFrame | None:
    """Return the table of comparisons with torch's own CPU kernel, where that is nobody's choice and fn has its bits of
    out and dq on one rank; else None."""
    if kernel != "auto":
        return None
    with suppress(ConfigError):  # of what that kernel does not take
        results = results_of(fn, kernel=SHORT_SUMS, **how)
        alone = results.loc[results["tensor"].isin(["out", "dq"]) & (results["world_size"] == 1)]
        if len(alone) and (alone[["status", "kernel", "diff_rel"]] == [OK, SHORT_SUMS, 0.0]).all(axis=None):
            return results
    return None


def in_16_bits(fn: Function | str, results: pd.DataFrame, limits: Limits, *, dtype: Any, kernel: Any = "auto",
               arithmetic: str | None = None, **how: Any) -> pd.DataFrame | None:  # fmt: skip
    """Return the comparison with a kernel that is in 16 bits throughout. None: of several ranks, of a function that is
    over the limits in float32 or runs other operators there, or where that kernel does not explain its errors."""
    coarse = {row["dtype"] for row in _over(_judged(rows_in(results)), limits)}
    alone = callable(fn) and (results["world_size"] == 1).all()
    if kernel != "auto" or arithmetic or not alone or not set() < coarse <= SHORT:
        return None
    watched, dtypes = Watched(fn, results["variant"].iloc[0]), sorted({*results["dtype"], "float32"})
    with suppress(ConfigError):  # of what that kernel does not take
        again = results_of(watched, dtype=dtypes, kernel=IN_16_BITS, arithmetic="float32", **how)
        judged = _judged(rows_in(again))
        alike = len({sum(row["dtype"] == each for row in judged) for each in dtypes}) == 1 and watched.are_alike()
        largest = all(row["error_max"] <= limits.largest * row["single_device_max"] for row in judged)
        same = alike and largest and have_same_errors(results, again, SHORT)
        if same and (not_measured(again) or _first(again, limits)) is None:
            return again[again["dtype"].isin(results["dtype"])].reset_index(drop=True)
    return None


def _first(results: pd.DataFrame, limits: Limits) -> str | None:
    """Return what is wrong with the first case in which something is."""
    cases = (rows for _, rows in results.groupby("case_id", sort=False))
    return next(filter(None, (_complaint(rows_in(rows), limits) for rows in cases)), None)


def _complaint(rows: Sequence[Row], limits: Limits) -> str | None:
    """Return what is wrong with a case's worst tensor: over all ranks, on its worst rank, at its worst element."""
    failed = [row for row in rows if row["status"] not in (OK, UNSUPPORTED)]
    if failed:
        return f"{_named(failed[0])}: {failed[0]['reason']}"
    judged = _judged(rows)
    over = _over(judged, limits)
    if not over:
        return next((_scaled(row) for row in judged if factor.is_scaled(row)), None)
    tensor = max(over, key=lambda row: _times(row) / _limit(row, limits))["tensor"]
    of_tensor = {row["rank"]: row for row in judged if row["tensor"] == tensor}
    total = of_tensor.pop(ALL_RANKS)
    worst = max(of_tensor.values(), key=_times)
    largest = max(of_tensor.values(), key=lambda row: float(row["error_max"]))
    others = sorted({row["tensor"] for row in over} - {tensor})
    lines = [
        f"{_named(total)}: {tensor} is {_times(total):.3g} times as far from float64 as {total['kernel']} run once"
        f" (allowed: {_limit(total, limits):g}), on rank {worst['rank']} {_times(worst):.3g} times"
        f" ({_limit(worst, limits):g})",
        "relative error {error_rel:.3g}; of {kernel} {single_device_rel:.3g}; of the reference rounded"
        " {floor_rel:.3g}".format_map(total),
        "largest error {error_max:.3g} on rank {rank}, at batch {worst_batch}, token {worst_token}, head {worst_head},"
        " dim {worst_dim}".format_map(largest),
    ]
    of_float32 = (row["error_rel"] <= rounding_band(row["tensor"], "float32") for row in judged)
    if total["dtype"] == "float64" and all(of_float32):
        lines.append("every error is of float32's size: what computes in float32 inside is right in a case of float32")
    return "\n".join([*lines, *([f"also over the limit: {', '.join(others)}"] if others else [])])


def _judged(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == OK and row["tensor"] != "delta"]  # delta follows from out


def _over(judged: Sequence[Row], limits: Limits) -> list[Row]:
    return [row for row in judged if _times(row) > _limit(row, limits)]


def _scaled(row: Row) -> str:
    where = "" if row["rank"] == ALL_RANKS else f" on rank {row['rank']}"
    return (
        f"{_named(row)}: {row['tensor']}{where} is {1 + row['error_gain']:.7g} times the reference, standard error"
        f" {row['error_gain_se']:.1g}: a factor, not rounding"
    )


def _limit(row: Row, limits: Limits) -> float:
    return limits.of(row["tensor"], whole=row["rank"] == ALL_RANKS)


def _times(row: Row) -> float:
    """Return a row's error over single device's, or over the floor, the reference's own, and that of the products of a
    function in a coarser arithmetic, where these are larger."""
    least = max(row["single_device_rel"], row["floor_rel"], REFERENCE_ERROR)
    if row["tensor"] in OF_ALL:  # of few numbers: the walk of their sums, which another order may miss by luck
        unit = FORMATS[accumulation_dtype(row["dtype"])].unit_roundoff
        least = max(least, math.sqrt(row["batch"] * row["seqlen_q"]) * unit)
    arithmetic = arithmetic_of(row["options"])
    if computed_in(row["dtype"], row["dtype"], arithmetic) in ARITHMETIC:
        least = max(least, OPERANDS * LEVEL * ARITHMETIC[arithmetic].unit_roundoff)
    elif row["dtype"] == "float32" != arithmetic and row["error_gain"] < -factor.STANDARD_ERRORS * row["error_gain_se"]:
        least = max(least, min(cut_off(row, row["tensor"]), OPERANDS * -row["error_gain"]))
    return float(row["error_rel"]) / least


def _named(row: Row) -> str:
    return (
        "{variant} ({dtype}, {world_size} ranks, {sharding}, {seqlen} tokens, {heads}/{heads_kv} heads of {head_dim},"
        " {mask}, seed {seed})".format_map(row)
    )
