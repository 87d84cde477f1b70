"""The ranks that the caller's own processes are: an attention function runs on them, the first compares."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from accuracy.core.case import Case
from accuracy.execute.ranks.launch import launch
from accuracy.inputs import base as inputs_base
from accuracy.measure.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.results.table import Row
from accuracy.runtime import arithmetic, sharding
from accuracy.runtime import device as devices
from accuracy.simulate.program import Ran
from accuracy.variant import callable as callable_variant
from accuracy.world.base import Results, Tensors


@dataclass(frozen=True)
class Present:
    """This rank among `size`; group is None where it is alone."""

    rank: int
    size: int
    group: dist.ProcessGroup | None


def present(group: dist.ProcessGroup | None, device: str) -> Present:
    """The group's ranks, else all of torch.distributed's, else those of torchrun, which are joined here, else one."""
    started = launch(os.environ)
    if group is None and started is not None and not dist.is_initialized():
        if device == "cuda":
            torch.cuda.set_device(started.local_rank)
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if not dist.is_initialized():
        return Present(0, 1, None)
    group = group or dist.group.WORLD
    return Present(dist.get_rank(group), dist.get_world_size(group), group)


def measure(fn: Callable[..., Any], case: Case, ranks: Present) -> list[Row]:
    """The case's rows, the same on every rank. fn runs with the arithmetic switches that the process has; the reference
    and the single-device kernel with exact ones."""
    switches = arithmetic.switches()
    arithmetic.make_exact()
    rows: list[list[Row] | None] = [None]
    try:
        if ranks.rank == 0:
            rows = [_compare(fn, case, ranks, switches)]
        else:
            _take_part(fn, case, ranks, switches)
    finally:
        arithmetic.set_switches(switches)
    if ranks.group is not None:
        dist.broadcast_object_list(rows, group_src=0, group=ranks.group)
    return rows[0] or []


def _compare(fn: Callable[..., Any], case: Case, ranks: Present, switches: arithmetic.Switches) -> list[Row]:
    def run_ranks(case: Case, shards: Sequence[Tensors]) -> Ran:
        with devices.measured(case.device) as cost:
            mine = _run(fn, case, shards[0], ranks, switches)
        every = _gathered(mine, ranks)
        failed = {rank: why for rank, why in enumerate(every) if isinstance(why, str) and why != OTHERS_FAILED}
        reasons = [f"rank {rank}: {why}" for rank, why in failed.items()]
        if reasons:
            raise RuntimeError("; ".join(reasons))
        where = shards[0][0].device
        return Ran([tuple(x if x is None else x.to(where) for x in each) for each in every], cost)

    return Pipeline("assert_accurate", Cache(None, 0.0), run_ranks).measure(case).rows


def _take_part(fn: Callable[..., Any], case: Case, ranks: Present, switches: arithmetic.Switches) -> None:
    drawn = inputs_base.draw(case.inputs, case.problem, case.seed)
    inputs = inputs_base.round_to(drawn, case.dtype, case.device)
    mine = (sharding.cut(x, case.variant.sharding, case.world_size)[ranks.rank] for x in inputs.tensors)
    _gathered(_run(fn, case, tuple(mine), ranks, switches), ranks)


def _run(
    fn: Callable[..., Any], case: Case, shards: Tensors, ranks: Present, switches: arithmetic.Switches
) -> Results | str:
    """out, lse, dq, dk, dv of this rank on the CPU, or why there are none.

    A rank that raises would leave the others waiting in their backward: all hear of it before.
    """
    q, k, v, dout = shards
    layout = str(dict(case.variant.options)["layout"])
    how = {"causal": case.problem.causal, "softmax_scale": case.problem.softmax_scale, "group": ranks.group}
    arithmetic.set_switches(switches)
    try:
        went = _attempted(lambda: callable_variant.attend(fn, layout, q, k, v, **how))
        if not _all_agree(not isinstance(went, str), ranks):
            return went if isinstance(went, str) else OTHERS_FAILED
        out, lse, graph = went
        gradients = _attempted(lambda: callable_variant.differentiate(graph, dout))
    finally:
        arithmetic.make_exact()
    if isinstance(gradients, str):
        return gradients
    return tuple(x if x is None else x.detach().cpu() for x in (out, lse, *gradients))


OTHERS_FAILED = "no backward, as another rank's forward failed"


def _attempted(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _all_agree(fine: bool, ranks: Present) -> bool:
    if ranks.group is None:
        return fine
    every: list[Any] = [None] * ranks.size
    dist.all_gather_object(every, fine, group=ranks.group)
    return all(every)


def _gathered(mine: Results | str, ranks: Present) -> list[Any]:
    """Every rank's outcome on the first rank, nothing on the others."""
    if ranks.group is None:
        return [mine]
    every: list[Any] | None = [None] * ranks.size if ranks.rank == 0 else None
    dist.gather_object(mine, every, group=ranks.group, group_dst=0)
    return every or []
