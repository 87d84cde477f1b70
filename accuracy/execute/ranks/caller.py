"""The ranks that the caller's own processes are: an attention function runs on them, the first compares."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from accuracy.core.case import Case
from accuracy.core.frames import located
from accuracy.execute.ranks import messages
from accuracy.execute.ranks.launch import launch
from accuracy.inputs import base as inputs_base
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.results.table import Row
from accuracy.runtime import arithmetic
from accuracy.runtime import device as devices
from accuracy.simulate.program import Ran
from accuracy.variant import callable as callable_variant
from accuracy.world.alone import group_of_one
from accuracy.world.base import Results, Tensors

OTHERS_FAILED = "no backward, as another rank's forward failed"


class CallersRank(NamedTuple):
    """This rank among `size`; group is None where it is alone."""

    rank: int
    size: int
    group: dist.ProcessGroup | None


def callers_rank(group: dist.ProcessGroup | None, device: str) -> CallersRank:
    """In the group, else in all of torch.distributed's, else in torchrun's, which is joined here, else alone."""
    started = launch(os.environ)
    if group is None and started is not None and not dist.is_initialized():
        if device == "cuda":
            torch.cuda.set_device(started.local_rank)
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if not dist.is_initialized():
        return CallersRank(0, 1, None)
    group = group or dist.group.WORLD
    return CallersRank(dist.get_rank(group), dist.get_world_size(group), group)


def measure(fn: Callable[..., Any], case: Case, here: CallersRank) -> list[Row]:
    """The case's rows, the same on every rank. fn runs with the arithmetic switches that the process has; the reference
    and the single-device kernel with exact ones."""
    switches, rows = arithmetic.switches(), list[Row]()
    with arithmetic.exact():
        if here.rank == 0:
            rows = _compare(fn, case, here, switches)
        else:
            _run(fn, case, inputs_base.draw_shard(case, here.rank), here, switches)
    if here.group is None:
        return rows
    received: list[Row] = json.loads(messages.share(json.dumps(rows), here.group)[0])
    return received


def _compare(fn: Callable[..., Any], case: Case, here: CallersRank, switches: arithmetic.Switches) -> list[Row]:
    def run_ranks(case: Case, shards: Sequence[Tensors]) -> Ran:
        with devices.measured(case.device) as cost:
            told, results = _run(fn, case, shards[0], here, switches)
        reasons = [f"rank {rank}: {each}" for rank, each in enumerate(told) if isinstance(each, str)]
        if reasons:
            raise RuntimeError("; ".join(each for each in reasons if OTHERS_FAILED not in each))
        return Ran(results, cost)

    return Pipeline("assert_accurate", Cache(None, 0.0), run_ranks).measure(case).rows


def _run(
    fn: Callable[..., Any], case: Case, shards: Tensors, here: CallersRank, switches: arithmetic.Switches
) -> tuple[list[Any], list[Results]]:
    """What each rank tells: why it has no results, else what they are like; on the first rank the results themselves. A
    rank that raises would leave the others waiting in their backward: all hear of it before."""
    q, k, v, dout = shards
    layout = str(dict(case.variant.options)["layout"])
    problem = case.problem.padded(case.variant.sharding, case.world_size)
    how = callable_variant.words(problem.softmax_scale, problem.softcap, problem.visibility)
    packed = callable_variant.documents(layout, problem.visibility)
    mine: Results = ()
    arithmetic.set_switches(switches)
    try:
        with group_of_one(case.device) if here.group is None else nullcontext(here.group) as group:
            went = _attempted(lambda: callable_variant.attend(fn, layout, q, k, v, packed, group=group, **how))
            fine = not isinstance(went, str)
            if here.group is not None and "False" in messages.share(str(fine), here.group):
                went = OTHERS_FAILED if fine else went
            if not isinstance(went, str):
                out, lse, graph = went
                went = _attempted(lambda: callable_variant.differentiate(graph, dout))
                mine = (out, lse, *went) if not isinstance(went, str) else ()
    finally:
        arithmetic.make_exact()
    mine = tuple(x if x is None else x.detach() for x in mine)
    told = went if isinstance(went, str) else messages.describe(mine)
    if here.group is None:
        return [told], [mine]
    every = [json.loads(text) for text in messages.share(json.dumps(told), here.group)]
    if any(isinstance(each, str) for each in every):
        return every, []
    return every, messages.collect(mine, every, here.group)


def _attempted(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return located(error)
