import pytest
import torch

from accuracy.world.simulated import RankFailed, run


def number(value: float) -> torch.Tensor:
    return torch.tensor([float(value)])


def shifted(world, tensors: tuple[torch.Tensor, ...], distance: int = 1):
    """Send to the rank so many places on, receive from that as many places back."""
    return world.exchange(tensors, (world.rank + distance) % world.size, (world.rank - distance) % world.size)


@pytest.mark.parametrize("distance", [1, -1, 2])
def test_shifts_under_way_bring_the_neighbours_tensors_each_in_its_own_order(distance: int) -> None:
    async def program(world):
        first = shifted(world, (number(world.rank), number(-world.rank)), distance)
        second = shifted(world, (number(10 + world.rank),))
        late = await second
        return *(await first), *late

    for rank, found in enumerate(run(program, 5)):
        source = (rank - distance) % 5
        assert [int(x) for x in found] == [source, -source, 10 + (rank - 1) % 5]


def test_reduce_scatter_adds_in_ring_order_and_rounds_at_every_hop() -> None:
    """Slice j starts at rank j + 1. In bfloat16 256 + 1 = 256, so 256 first loses every 1, and 256 last none."""

    async def program(world):
        values = torch.ones(4, dtype=torch.bfloat16)
        return await world.reduce_scatter((values * (256 if world.rank == 0 else 1),))

    results = [int(x) for (x,) in run(program, 4)]
    # slice 0: ranks 1, 2, 3, 0: 3 + 256 = 259 -> 260 in bfloat16 (spacing 2); slice 3: ranks 0, 1, 2, 3: 256
    assert (results[0], results[3]) == (260, 256)


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
