"""Partials are joined by another formula, or sums and what travels are kept in another dtype or buffer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.dtype import Precision
from accuracy.core.masks import Block
from accuracy.core.paths import EXPERIMENTS
from accuracy.kernel.block.running_state import RunningState
from accuracy.variant import ring
from accuracy.variant.base import Rank, Schedule
from accuracy.variant.join import Accumulator, Formula, Running
from accuracy.world.base import Tensors
from tests.unit.fault.planted.base import EVERYTHING, GRADIENTS, Fault, changed, on_rank, reported

Pair = tuple[Tensor, Tensor]
"""out and lse."""


@dataclass(frozen=True)
class Hidden(Block):
    """A block that no query sees."""


@dataclass(frozen=True)
class HiddenBlocks(ring.Ring):
    """The ring's forward without its shortcut: hidden blocks are merged too, with out = 0 and lse = `empty_lse`. Own
    keys come last, so that they come first."""

    precision: Precision = Precision(ring_order="diagonal_last")  # noqa: RUF009
    empty_lse: float = -torch.inf

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        def every_block(rank: Rank, source: int, length: int) -> list[Block]:
            whole = slice(0, length)
            return self.blocks(rank, source, length) or [Hidden(whole, whole, causal=True)]

        def attend(changed_rank: Rank, block: Block, q: Tensor, k: Tensor, v: Tensor) -> Pair:
            if not isinstance(block, Hidden):
                return type(rank).attend(changed_rank, block, q, k, v)
            batch, length, heads, _ = q.shape
            out = torch.zeros_like(q, dtype=rank.place("partial"))
            return out, q.new_full((batch, heads, length), self.empty_lse, dtype=rank.lse_dtype)

        return await ring.Ring(blocks=every_block).forward(changed(rank, attend=attend), q, k, v)


def merged_by(formula: Formula, schedule: Schedule = ring.SCHEDULE) -> Schedule:
    """The schedule with another formula that joins two partials. A case on a kernel that merges nothing fails."""

    def running(self: Rank, q: Tensor) -> Running:
        found = Rank.running(self, q)
        if isinstance(found, RunningState):
            raise RuntimeError("the fault is in the merge, and this kernel carries its state unmerged: use another")

        def join(rows: slice, *block: Tensor) -> None:
            found.out[:, rows], found.lse[:, rows] = formula(found.out[:, rows], found.lse[:, rows], *block)

        found._merge = join
        return found

    return on_rank(lambda rank: changed(rank, running=running), "forward", schedule=schedule)


def weighted(out: Tensor, block_out: Tensor, *lses: Tensor) -> Tensor:
    """The two outs by their shares of the joint log-sum-exp; NaN where both are empty: exp(-inf - (-inf))."""
    lse, block_lse, joint = lses
    return torch.exp(lse - joint) * out + torch.exp(block_lse - joint) * block_out


def unguarded(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """Right but where both are empty."""
    joint = torch.logaddexp(lse, block_lse)
    return weighted(out, block_out, lse, block_lse, joint), joint


def guarded(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """Right where partials are empty, as long as log 0 is -inf."""
    joint = torch.logaddexp(lse, block_lse)
    weight, block_weight = (torch.exp(each - joint).nan_to_num(nan=0.0) for each in (lse, block_lse))
    return weight * out + block_weight * block_out, joint


def overflowing(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """exp overflows where block_lse is 88.7 above lse, in float32 (709 in float64)."""
    joint = lse + torch.log(1 + torch.exp(block_lse - lse))
    return weighted(out, block_out, lse, block_lse, joint), joint


def clipped(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """exp without its maximum: overflows in float16 beyond 11, in float32 beyond 88."""
    one, other = torch.exp(lse), torch.exp(block_lse)
    return (one * out + other * block_out) / (one + other), torch.log(one + other)


def swapped(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """Each partial has the other's weight."""
    return out - torch.sigmoid(lse - block_lse) * (out - block_out), torch.logaddexp(lse, block_lse)


def with_lse(kept: Callable[[Tensor, Tensor], Tensor]) -> Schedule:
    """The ring whose merge is right in out, and keeps another lse."""

    def formula(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
        return out - torch.sigmoid(block_lse - lse) * (out - block_out), kept(lse, block_lse)

    return merged_by(formula)


def aliased(self: Accumulator, rows: slice, block: Tensor) -> None:
    """A block of the sum's dtype was written where the sum is."""
    if self.total is not None and block.dtype == self.dtype:
        self.total[:, rows] = block
        block = self.total[:, rows]
    Accumulator.add(self, rows, block)


def summed(schedule: Schedule, change: Callable[[Rank, str, Accumulator], Accumulator]) -> Schedule:
    """The schedule with `change(rank, gradient, sum)` for the sums of its gradients."""

    def changed_rank(rank: Rank) -> Rank:
        return changed(rank, accumulator=lambda self, name, like: change(rank, name, rank.accumulator(name, like)))

    return on_rank(changed_rank, "backward", schedule=schedule)


LEAST = {torch.bfloat16: 2**-10, torch.float16: 2**-13, torch.float32: 2**-20, torch.float64: 0.0}
"""By dtype of the inputs, what a sum is multiplied by less 1, before it is rounded: hardly to be told by the format."""


def least_of_dq(rank: Rank, name: str, found: Accumulator) -> Accumulator:
    """dq's sum, times a factor: of each block, as what `value` returns is what `add` adds to."""

    def add(self: Accumulator, rows: slice, block: Tensor) -> None:
        Accumulator.add(self, rows, block.to(self.dtype) * (1 + LEAST[rank.dtype]))

    return changed(found, add=add) if name == "dq" else found


def least_of_out(rank: Rank) -> Rank:
    """The merged out, times a factor."""

    def running(self: Rank, q: Tensor) -> Any:
        found = rank.running(q)
        result = found.result

        def scaled(out_dtype: torch.dtype, lse_dtype: torch.dtype) -> Pair:
            out, lse = result(torch.float64, lse_dtype)
            return (out * (1 + LEAST[rank.dtype])).to(out_dtype), lse

        found.result = scaled
        return found

    return changed(rank, running=running)


def rounding(**places: Any) -> ring.Ring:
    """The ring that rounds at these places."""
    return ring.Ring(precision=Precision(**places))


FLOAT32 = rounding(dq_accumulator="float32", dkv_accumulator="float32")
STALE = EXPERIMENTS / "bpt_backward" / "variant" / "bpt_stale_buffer.py"
MERGE, CAST, FACTOR = ("merge",), ("cast",), ("factor",)
PARTS = {
    # ring-flash-attention's ring, zigzag and stripe backward with float32 inputs: gradients come in a buffer that every
    # step reuses, and `.to(float32)` of one that is float32 already is no copy; they are wrong by 0.4 to 4.8
    "accumulator_alias": reported(
        summed(FLOAT32, lambda rank, name, found: changed(found, add=aliased)), "logic", GRADIENTS, "blocks"),
    # ring-flash-attention #24
    "bpt_stale_buffer": reported(plugins.load(str(STALE)).SCHEDULE, "logic", GRADIENTS, "blocks"),
    # TransformerEngine #821, lucidrains' ring attention: the error grows like the square root of the world size, and no
    # finer dtype of the inputs helps
    "bf16_grad_sum": reported(
        rounding(dkv_accumulator="bfloat16", gradient_wire="bfloat16"), "precision_floor", "dk dv", "cast"),
    # no fault but the published ring, which must stay `rounding`: each block's out is rounded to 16 bits before the
    # merge; ring-flash-attention #42 and #22, flash-attention PR #2723: 1.06 to 1.19 times single device
    "bf16_partials": reported(ring.Ring(), "rounding", EVERYTHING),
    "both_empty": reported(merged_by(unguarded, HiddenBlocks()), "invalid", "out"),  # vLLM #39148, flashinfer #4051
    # flashinfer #4401: the true lse is lost to cancellation
    "finite_mask_sentinel": reported(HiddenBlocks(empty_lse=-1e30), "logic", "lse", "zero"),
    # projects with the merge of ring-flash-attention #34, by sigmoid and logsigmoid, that do not skip hidden blocks
    "masked_first_partial": reported(HiddenBlocks(), "invalid", "lse"),
    # EasyContext #14, ring-flash-attention #30 and #34, TransformerEngine #716
    "merge_overflow": reported(merged_by(overflowing), "invalid", "out lse"),
    # flash-attention PR #978: the +inf of flash-attention 2 outweighs every other partial
    "plus_inf_empty_row": reported(merged_by(guarded, HiddenBlocks(empty_lse=torch.inf)), "logic", "out", "merge"),
    "merge_swapped": Fault(merged_by(swapped), "out dq dk", causes=MERGE),
    "merge_lse_larger": Fault(with_lse(torch.maximum), EVERYTHING, causes=MERGE),
    "merge_lse_kept": Fault(with_lse(lambda lse, block_lse: lse.clone()), EVERYTHING, causes=MERGE),
    "merge_mean": Fault(
        merged_by(lambda out, lse, block_out, block_lse: ((out + block_out) / 2, torch.logaddexp(lse, block_lse))),
        "out dq dk", causes=MERGE),
    "merge_without_maximum": Fault(merged_by(clipped), EVERYTHING, causes=MERGE),
    "cast_partial": Fault(rounding(partial="float16"), "out dq dk", causes=CAST),
    "cast_dq_sum": Fault(rounding(dq_accumulator="bfloat16"), "dq", causes=CAST),
    "cast_wire": Fault(rounding(wire="bfloat16"), EVERYTHING, causes=CAST),
    "cast_gradient_wire": Fault(rounding(gradient_wire="float16"), "dk dv", causes=CAST),
    "factor_dq_least": Fault(summed(ring.SCHEDULE, least_of_dq), "dq", causes=FACTOR),
    "factor_out_least": Fault(on_rank(least_of_out, "forward"), "out", causes=FACTOR, consequences="dq dk"),
}  # fmt: skip
