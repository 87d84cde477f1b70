"""torchrun --nproc-per-node=2 reproduce_all_gather.py: gradients of torch's differentiable all_gather on gloo."""

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_gather

dist.init_process_group("gloo")
size, weight = dist.get_world_size(), torch.arange(6.0).reshape(3, 2)


def gradient(dense: bool) -> torch.Tensor:
    """Of the sum, over ranks, of weight times each gathered (2, 3), transposed: weight.T times the number of ranks."""
    x = torch.ones(2, 3, requires_grad=True)
    parts = all_gather(x)
    for part in parts if dense else ():
        part.register_hook(lambda g: g.contiguous())
    sum((part.T * weight).sum() for part in parts).backward()
    return x.grad


right = weight.T * size
for dense in (False, True):
    error = (gradient(dense) - right).norm() / right.norm()
    way = "contiguous" if dense else "transposed"
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}, {way} gradients: relative error {error:.2g}")
dist.destroy_process_group()
