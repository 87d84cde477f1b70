import pytest
import torch

from accuracy.world.simulated import RankFailed, run


def shifted(world, tensors: tuple[torch.Tensor, ...]):
    return world.exchange(tensors, (world.rank + 1) % world.size, (world.rank - 1) % world.size)


def number(value: float) -> torch.Tensor:
    return torch.tensor([float(value)])


@pytest.mark.parametrize("poison", [False, True])
def test_a_receive_buffer_holds_what_was_sent_only_after_it_was_waited_for(poison: bool) -> None:
    """And writing to a tensor on its way is caught."""

    async def writing(world):
        mine = number(world.rank)
        arriving = shifted(world, (mine,))
        mine += 1
        return await arriving

    async def program(world):
        shift, gather = shifted(world, (number(world.rank),)), world.all_gather((number(world.rank),))
        exchange = world.all_to_all((torch.arange(3.0) + 10 * world.rank,))
        scatter = world.reduce_scatter((torch.ones(3, 1) * world.rank,))
        transfers = shift, gather, exchange, scatter
        early = [each.received[0].clone() for each in transfers]
        late = [(await each)[0] for each in transfers]
        assert all(x is each.received[0] for x, each in zip(late, transfers, strict=True))
        return *early, *late

    for rank, results in enumerate(run(program, 3, poison)):
        early, late = results[:4], [x.flatten().tolist() for x in results[4:]]
        assert late == [[(rank - 1) % 3], [0, 1, 2], [rank, 10 + rank, 20 + rank], [3]]
        assert [tuple(x.shape) for x in early] == [tuple(x.shape) for x in results[4:]]
        assert all(bool(x.isnan().all()) == poison for x in early)
    with pytest.raises(RankFailed, match="wrote to a tensor on its way"):
        run(writing, 2)
