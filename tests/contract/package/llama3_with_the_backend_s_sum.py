"""Our llama3 backward with the backend's own reduce-scatter instead of the order that the world's contract fixes."""

from collections.abc import Sequence
from dataclasses import replace

import torch.distributed as dist
from torch import Tensor

from accuracy.variant import llama3
from accuracy.variant.base import Rank
from accuracy.world.base import Tensors
from accuracy.world.processes import ProcessesWorld, Transfer
from tests.unit.fault.planted.base import changed


class BackendSums(ProcessesWorld):
    def reduce_scatter(self, tensors: Sequence[Tensor]) -> Transfer:
        received = tuple(tensor.new_empty(tensor.shape[1:]) for tensor in tensors)
        for mine, slices in zip(received, tensors, strict=True):
            dist.reduce_scatter_tensor(mine, slices.flatten(0, 1), group=self.group)
        return Transfer((), (), received, lambda tensor: tensor)


async def backward(self: llama3.Llama3, rank: Rank, *tensors: Tensor) -> Tensors:
    world = BackendSums(rank.world.rank, rank.world.size, rank.world.group)
    return await llama3.SCHEDULE.backward(replace(rank, world=world), *tensors)


SCHEDULE = changed(llama3.SCHEDULE, backward=backward)
