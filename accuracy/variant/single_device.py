"""Single device: the kernel run once on the whole sequence, or once a document; what all others are compared with."""

from torch import Tensor

from accuracy.variant.base import Rank, Schedule
from accuracy.world.base import Tensors


class SingleDevice(Schedule):
    """Merges nothing, sends nothing."""

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        """See `Schedule.forward`; q may have another number of tokens than k and v."""
        out, lse = rank.attend_rows(q, k, v)
        return out.to(rank.dtype), lse.to(rank.lse_dtype)

    async def backward(
        self, rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """See `Schedule.backward`."""
        dq, dk, dv = rank.differentiate_rows(dout, q, k, v, out, lse)
        return dq.to(rank.dtype), dk.to(rank.dtype), dv.to(rank.dtype)


SCHEDULE = SingleDevice(
    features=(
        "cross_lengths", "top_left", "window", "documents", "softcap", "head_dim_v", "sinks", "attn_mask",
    ),
    forward_places=("partial",),
    backward_places=("gradient_partial",),
    one_device=True,
    merges=False,
)  # fmt: skip
