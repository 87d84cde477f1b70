"""The road from a case to its rows, one call per arrow; the only file that sees every stage.

case -> inputs -> world -> variant (kernel) -> reference -> metrics -> rows of the table
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from accuracy import device, metrics, parts, provenance
from accuracy.case import Case, Part, Problem
from accuracy.dtype import tensor_dtype
from accuracy.inputs import base as inputs_base
from accuracy.kernel.base import Kernel
from accuracy.precision import Precision
from accuracy.reference.cache import Cache
from accuracy.sharding import cut, token_map
from accuracy.table import ALL_RANKS, DECLINED, FAILED, OK, TENSORS, Row
from accuracy.variant.base import Rank
from accuracy.world import simulated
from accuracy.world.base import Tensors, World
from accuracy.yardsticks import Named, Yardsticks, build_kernel, in_token_layout


@dataclass(frozen=True)
class Measured:
    """A case's rows for `results/` and for `positions/`."""

    rows: list[Row]
    positions: list[Row]


class Pipeline:
    """Measures cases one after another; keeps what neighbours in the grid share."""

    def __init__(self, experiment: str, truth_cache: Cache) -> None:
        self.experiment = experiment
        self.truth_cache = truth_cache
        self._drawn: tuple[object, dict[str, Tensor]] | None = None
        self._yardsticks: tuple[object, Yardsticks] | None = None

    def decline(self, case: Case, reason: str) -> Measured:
        """The row of a case that its parts cannot do."""
        return Measured([self._empty_row(case, DECLINED, reason)], [])

    def measure(self, case: Case) -> Measured:
        """Walk the road. Whatever goes wrong in it becomes a row with the reason."""
        try:
            return self._walk(case)
        except Exception as error:
            reason = _reason(error)
            out_of_memory = isinstance(error.__cause__ or error, torch.OutOfMemoryError)
        if out_of_memory:  # only here, where the error no longer holds the tensors
            self._yardsticks = None
            torch.cuda.empty_cache()
        return Measured([self._empty_row(case, FAILED, reason)], [])

    def _walk(self, case: Case) -> Measured:
        yardsticks = self.yardsticks(case)
        yardsticks.one_shot(case)  # outside the measured stretch; it also warms the kernel up
        with device.measured(case.device) as cost:
            shards = run_variant(case, yardsticks)
        return self._compare(case, yardsticks, shards, cost)

    def yardsticks(self, case: Case) -> Yardsticks:
        """Inputs, truth and all that is compared with, for the case's problem, seed and dtype."""
        key = (case.problem, case.inputs, case.seed, case.dtype, case.device)
        if self._yardsticks is None or self._yardsticks[0] != key:
            self._yardsticks = None  # free the old ones first
            inputs = inputs_base.round_to(self._draw(case.inputs, case.problem, case.seed), case.dtype, case.device)
            truth = self.truth_cache.truth(case.problem, case.inputs, case.seed, case.dtype, inputs)
            self._yardsticks = key, Yardsticks.of(inputs, truth, case.dtype)
        return self._yardsticks[1]

    def _draw(self, part: Part, problem: Problem, seed: int) -> dict[str, Tensor]:
        key = (part, problem, seed)
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = key, inputs_base.draw(part, problem, seed)
        return self._drawn[1]

    def _compare(self, case: Case, yardsticks: Yardsticks, shards: Named, cost: device.Cost) -> Measured:
        tokens = token_map(case.variant.sharding, case.problem.seqlen, case.world_size)
        one_shot = yardsticks.one_shot(case)
        rows: list[Row] = []
        positions: list[Row] = []
        broken = []
        for name in TENSORS:
            x = shards[name]
            truth, baseline = (
                cut(whole[name], case.variant.sharding, case.world_size) for whole in (yardsticks.truth, one_shot)
            )
            check_result(name, x, truth, case)
            error = metrics.error_of(x, truth)
            columns = metrics.metric_columns(
                error=metrics.sums(error, x, truth),
                diff=metrics.sums(metrics.error_of(x, baseline.double()), x, baseline.double()),
                one_shot=yardsticks.one_shot_sums(case, name, truth),
                floor=yardsticks.floor_sums(case, name, truth),
                ulp=metrics.ulp_max(error, truth, tensor_dtype(name, case.dtype)),
            )
            rows += self._metric_rows(case, name, columns, error.shape, tokens, cost)
            positions += _position_rows(case, name, error, tokens)
            if count := int(columns["nonfinite"][-1]):
                broken.append(f"{count} non-finite values in {name}")
        if broken:
            rows = [{**row, "status": FAILED, "reason": "; ".join(broken)} for row in rows]
        return Measured(rows, positions)

    def _metric_rows(
        self,
        case: Case,
        tensor: str,
        columns: dict[str, Any],
        shape: torch.Size,
        tokens: Tensor,
        cost: device.Cost,
    ) -> Iterator[Row]:
        identity = self._empty_row(case, OK, "") | {
            "tensor": tensor,
            "seconds": cost.seconds,
            "peak_bytes": cost.peak_bytes,
        }
        worst = columns.pop("worst")
        top = int(columns["error_max"][:-1].argmax())
        for index in range(case.world_size + 1):
            rank = ALL_RANKS if index == case.world_size else index
            place = worst_place(int(worst[index]), shape, tokens[top if rank == ALL_RANKS else rank])
            values = {name: float(column[index]) for name, column in columns.items()}
            yield identity | {"rank": rank, **values, "nonfinite": int(values["nonfinite"]), **place}

    def _empty_row(self, case: Case, status: str, reason: str) -> dict[str, Any]:
        return {
            **case.identity(),
            "experiment": self.experiment,
            "device": device.name(case.device),
            "code": provenance.code_of(case),
            "rank": ALL_RANKS,
            "status": status,
            "reason": reason,
        }


def run_variant(case: Case, yardsticks: Yardsticks, kernel: Kernel | None = None) -> Named:
    """The case's schedules over all ranks: shards (W, B, S/W, ...) of out, lse, dq, dk, dv, delta, as stored.

    kernel: to be used in place of the case's own, by benchmarks and traces.
    """
    layout = case.variant.sharding, case.world_size
    q, k, v, dout = (cut(x, *layout) for x in yardsticks.inputs.tensors)
    forward, backward = (parts.load(part.source) for part in (case.variant.forward, case.variant.backward))
    kernel = kernel or build_kernel(case.kernel, case.device)
    versions = [x._version for x in (q, k, v, dout)]

    async def program(world: World) -> Tensors:
        mine = q[world.rank], k[world.rank], v[world.rank]
        out, lse = await forward.forward(_rank(case, world, kernel, forward, case.forward_precision), *mine)
        rank = _rank(case, world, kernel, backward, case.backward_precision)
        gradients = await backward.backward(rank, dout[world.rank], *mine, out, lse)
        return out, lse, *gradients

    results = simulated.run(program, case.world_size)
    if [x._version for x in (q, k, v, dout)] != versions:
        raise RuntimeError("the variant wrote to its inputs")
    stacked = tuple(torch.stack(same) for same in zip(*results, strict=True))
    return in_token_layout(stacked, dout)


def _rank(case: Case, world: World, kernel: Kernel, schedule: ModuleType, precision: Precision) -> Rank:
    return Rank(
        world=world,
        kernel=kernel,
        precision=precision,
        dtype=getattr(torch, case.dtype),
        scale=case.problem.softmax_scale,
        causal=case.problem.causal,
        sharding=case.variant.sharding,
        options=parts.build_options(schedule, case.variant.options),
    )


def check_result(name: str, x: Tensor, truth: Tensor, case: Case) -> None:
    """A wrong shape or dtype is a fault of the variant, not something to broadcast or cast away."""
    expected = "float64" if name == "delta" else tensor_dtype(name, case.dtype)
    if x.shape != truth.shape or x.dtype != getattr(torch, expected):
        raise RuntimeError(
            f"{name} came as {tuple(x.shape)} {x.dtype}, expected {tuple(truth.shape)} {expected} (ranks first)"
        )


def worst_place(flat: int, shape: torch.Size, tokens: Tensor) -> dict[str, int]:
    """Global batch, token, head and dim of a flat index into one rank's shard; dim -1 where a tensor has none."""
    sizes = shape[1:]
    index: list[int] = []
    for size in reversed(sizes):
        flat, position = divmod(flat, size)
        index.insert(0, position)
    batch, local, head, *dim = index
    return {
        "worst_batch": batch,
        "worst_token": int(tokens[local]),
        "worst_head": head,
        "worst_dim": dim[0] if dim else -1,
    }


def _position_rows(case: Case, tensor: str, error: Tensor, tokens: Tensor) -> Iterator[Row]:
    borders = metrics.position_bins(case.problem.seqlen)
    rms, largest = metrics.by_position(error, tokens)
    owners = metrics.bin_owners(borders, tokens)
    for begin, end, owner, root_mean_square, maximum in zip(
        borders[:-1].tolist(),
        borders[1:].tolist(),
        owners.tolist(),
        rms.tolist(),
        largest.tolist(),
        strict=True,
    ):
        yield {
            "case_id": case.id,
            "tensor": tensor,
            "token_begin": begin,
            "token_end": end,
            "rank": owner,
            "error_rms": root_mean_square,
            "error_max": maximum,
        }


def _reason(error: BaseException) -> str:
    """One line, without addresses that would differ from run to run."""
    text = " ".join(str(error).split())
    return (text if isinstance(error, simulated.RankFailed) else f"{type(error).__name__}: {text}")[:500]
