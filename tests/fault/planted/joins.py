"""Partials are joined by another formula, or sums and what travels are kept in another dtype or buffer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.masks import Block
from accuracy.core.paths import EXPERIMENTS
from accuracy.core.precision import Precision
from accuracy.variant import ring
from accuracy.variant.base import Rank
from accuracy.variant.join import Accumulator
from accuracy.world.base import Tensors
from tests.fault.planted.base import EVERYTHING, GRADIENTS, Fault, changed, merged_by, on_rank, reported, summed_by

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
        """See `Schedule.forward`."""

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


def unguarded(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """Right but where both are empty: exp(-inf - (-inf)) is NaN."""
    joint = torch.logaddexp(lse, block_lse)
    return torch.exp(lse - joint) * out + torch.exp(block_lse - joint) * block_out, joint


def guarded(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """Right where partials are empty, as long as log 0 is -inf."""
    joint = torch.logaddexp(lse, block_lse)
    weight, block_weight = (torch.exp(each - joint).nan_to_num(nan=0.0) for each in (lse, block_lse))
    return weight * out + block_weight * block_out, joint


def overflowing(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """exp overflows where block_lse is 88.7 above lse, in float32 (709 in float64)."""
    joint = lse + torch.log(1 + torch.exp(block_lse - lse))
    return torch.exp(lse - joint) * out + torch.exp(block_lse - joint) * block_out, joint


def clipped(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """exp without its maximum: overflows in float16 beyond 11, in float32 beyond 88."""
    one, other = torch.exp(lse), torch.exp(block_lse)
    return (one * out + other * block_out) / (one + other), torch.log(one + other)


def swapped(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """Each partial has the other's weight."""
    weight = torch.sigmoid(lse - block_lse)
    return out - weight * (out - block_out), torch.logaddexp(lse, block_lse)


def larger_lse(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """lse becomes the larger of the two."""
    weight = torch.sigmoid(block_lse - lse)
    return out - weight * (out - block_out), torch.maximum(lse, block_lse)


def first_lse(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """lse stays that of the first partial."""
    weight = torch.sigmoid(block_lse - lse)
    return out - weight * (out - block_out), lse.clone()


def mean(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Pair:
    """Both weigh the same."""
    return (out + block_out) / 2, torch.logaddexp(lse, block_lse)


def aliased(self: Accumulator, rows: slice, block: Tensor) -> None:
    """A block of the sum's dtype was written where the sum is."""
    if self.total is not None and block.dtype == self.dtype:
        self.total[:, rows] = block
        block = self.total[:, rows]
    Accumulator.add(self, rows, block)


LEAST = {torch.bfloat16: 2**-10, torch.float16: 2**-13, torch.float32: 2**-20, torch.float64: 0.0}
"""By dtype of the inputs, what a sum is multiplied by less 1, before it is rounded: hardly to be told by the format."""


def least_of_dq(rank: Rank) -> Rank:
    """dq's sum, times a factor."""

    def accumulator(self: Rank, name: str, like: Tensor) -> Accumulator:
        found = rank.accumulator(name, like)
        if name == "dq":
            value = found.value
            found.value = lambda: value() * (1 + LEAST[rank.dtype])  # type: ignore[method-assign]
        return found

    return changed(rank, accumulator=accumulator)


def least_of_out(rank: Rank) -> Rank:
    """The merged out, times a factor."""

    def running(self: Rank, q: Tensor) -> Any:
        found = rank.running(q)
        result = found.result

        def scaled(out_dtype: torch.dtype, lse_dtype: torch.dtype) -> Pair:
            out, lse = result(torch.float64, lse_dtype)
            return (out * (1 + LEAST[rank.dtype])).to(out_dtype), lse

        found.result = scaled  # type: ignore[method-assign]
        return found

    return changed(rank, running=running)


def rounding(**places: Any) -> ring.Ring:
    """The ring that rounds at these places."""
    return ring.Ring(precision=Precision(**places))


FLOAT32 = {"dq_accumulator": "float32", "dkv_accumulator": "float32"}
STALE = EXPERIMENTS / "bpt_backward" / "variant" / "bpt_stale_buffer.py"
MERGE, CAST, FACTOR = ("merge",), ("cast",), ("factor",)
PARTS = {
    # ring-flash-attention's ring, zigzag and stripe backward with float32 inputs: gradients come in a buffer that every
    # step reuses, and `.to(float32)` of one that is float32 already is no copy; they are wrong by 0.4 to 4.8
    "accumulator_alias": reported(summed_by(aliased, Precision(**FLOAT32)), "logic", GRADIENTS),
    "bpt_stale_buffer": reported(plugins.load(str(STALE)).SCHEDULE, "logic", GRADIENTS),  # ring-flash-attention #24
    # TransformerEngine #821, lucidrains' ring attention: the error grows like the square root of the world size, and no
    # finer dtype of the inputs helps
    "bf16_grad_sum": reported(
        rounding(dkv_accumulator="bfloat16", gradient_wire="bfloat16"), "precision_floor", "dk dv"
    ),
    # no fault but the published ring, which must stay `rounding`: each block's out is rounded to 16 bits before the
    # merge; ring-flash-attention #42 and #22, flash-attention PR #2723: 1.06 to 1.19 times single device
    "bf16_partials": reported(ring.Ring(), "rounding", EVERYTHING),
    "both_empty": reported(merged_by(unguarded, HiddenBlocks()), "invalid", "out"),  # vLLM #39148, flashinfer #4051
    # flashinfer #4401: the true lse is lost to cancellation
    "finite_mask_sentinel": reported(HiddenBlocks(empty_lse=-1e30), "logic", "lse"),
    # projects with the merge of ring-flash-attention #34, by sigmoid and logsigmoid, that do not skip hidden blocks
    "masked_first_partial": reported(HiddenBlocks(), "invalid", "lse"),
    # EasyContext #14, ring-flash-attention #30 and #34, TransformerEngine #716
    "merge_overflow": reported(merged_by(overflowing), "invalid", "out lse"),
    # flash-attention PR #978: the +inf of flash-attention 2 outweighs every other partial
    "plus_inf_empty_row": reported(merged_by(guarded, HiddenBlocks(empty_lse=torch.inf)), "logic", "out"),
    "merge_swapped": Fault(merged_by(swapped), "out dq dk", causes=MERGE),
    "merge_lse_larger": Fault(merged_by(larger_lse), EVERYTHING, causes=MERGE),
    "merge_lse_kept": Fault(merged_by(first_lse), EVERYTHING, causes=MERGE),
    "merge_mean": Fault(merged_by(mean), "out dq dk", causes=MERGE),
    "merge_without_maximum": Fault(merged_by(clipped), EVERYTHING, causes=MERGE),
    "cast_partial": Fault(rounding(partial="float16"), "out dq dk", causes=CAST),
    "cast_dq_sum": Fault(rounding(dq_accumulator="bfloat16"), "dq", causes=CAST),
    "cast_wire": Fault(rounding(wire="bfloat16"), EVERYTHING, causes=CAST),
    "cast_gradient_wire": Fault(rounding(gradient_wire="float16"), "dk dv", causes=CAST),
    "factor_dq_least": Fault(on_rank(ring.SCHEDULE, least_of_dq, "backward"), "dq", causes=FACTOR),
    "factor_out_least": Fault(
        on_rank(ring.SCHEDULE, least_of_out, "forward"), "out", causes=FACTOR, consequences="dq dk"
    ),
}
