"""Memory read in another layout than it was written in; one item of a batch for another; head dims cut short."""

from typing import Any

from torch import Tensor

from accuracy.kernel.base import Kernel
from accuracy.world.base import Tensors
from tests.fault.planted.base import EVERYTHING, Fault, Schedule, on_kernel, returning

WIDTH = 32


def reread(x: Tensor) -> Tensor:
    """(B, H, S, D) in memory, read as (B, S, H, D): a transpose without its copy."""
    return x.transpose(1, 2).contiguous().view(x.shape)


def of(way: str, place: int) -> Schedule:
    """One result reread."""
    return returning(way, lambda rank, *x: (*x[:place], reread(x[place]), *x[place + 1 :]))


def first_item(kernel: Any, *tensors: Tensor, **how: Any) -> Tensors:
    """A batch stride of 0: each item reads the keys of the first."""
    place = 1 if len(tensors) == 3 else 2
    keys = tensors[place][:1].expand_as(tensors[place])
    call = kernel.forward if len(tensors) == 3 else kernel.backward
    return call(*tensors[:place], keys, *tensors[place + 1 :], **how)


def cut_dims(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensors:
    """Scores of the first dims only, as far as whole tiles go."""
    whole = q.shape[-1] // WIDTH * WIDTH or q.shape[-1]
    q = q.clone()
    q[..., whole:] = 0
    return kernel.forward(q, k, v, **how)


LAYOUT = ("layout",)
PARTS = {
    "layout_out": Fault(of("forward", 0), "out dq dk", causes=LAYOUT),
    "layout_dq": Fault(of("backward", 0), "dq", causes=LAYOUT),
    "layout_dk": Fault(of("backward", 1), "dk", causes=LAYOUT),
    "layout_dv": Fault(of("backward", 2), "dv", causes=LAYOUT),
    "layout_batch": Fault(on_kernel(forward=first_item), EVERYTHING, where=("problem.batch=2",)),
    "layout_batch_backward": Fault(on_kernel(backward=first_item), "dq dk dv", where=("problem.batch=2",)),
    "layout_head_dim": Fault(on_kernel(forward=cut_dims), EVERYTHING, where=("problem.head_dim=40",)),
}
