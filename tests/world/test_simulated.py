"""The simulated world does what its contract says, and refuses what real ranks could not do."""

import pytest
import torch

from accuracy.world.simulated import Deadlock, RankFailed, run


def number(value: float) -> torch.Tensor:
    return torch.tensor([float(value)])


@pytest.mark.parametrize("distance", [1, -1, 2])
def test_a_shift_brings_the_neighbours_tensors(distance: int) -> None:
    async def program(world):
        return await world.ring_shift((number(world.rank), number(-world.rank)), distance)

    results = run(program, 5)
    assert [int(a) for a, _ in results] == [(rank - distance) % 5 for rank in range(5)]
    assert [int(b) for _, b in results] == [-((rank - distance) % 5) for rank in range(5)]


def test_several_shifts_under_way_arrive_in_their_own_order() -> None:
    async def program(world):
        first = world.ring_shift((number(world.rank),))
        second = world.ring_shift((number(10 + world.rank),))
        (late,) = await second
        (early,) = await first
        return early, late

    assert [(int(a), int(b)) for a, b in run(program, 3)] == [(2, 12), (0, 10), (1, 11)]


def test_gather_stacks_in_rank_order() -> None:
    async def program(world):
        return await world.all_gather((number(world.rank),))

    for (gathered,) in run(program, 4):
        assert gathered.flatten().tolist() == [0, 1, 2, 3]


def test_all_to_all_is_a_transposition() -> None:
    async def program(world):
        return await world.all_to_all((torch.arange(3.0) + 10 * world.rank,))

    assert [x.tolist() for (x,) in run(program, 3)] == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]


def test_reduce_scatter_adds_in_ring_order_and_rounds_at_every_hop() -> None:
    """Slice j starts at rank j + 1. In bfloat16 256 + 1 = 256, so 256 first loses every 1, and 256 last none."""

    async def program(world):
        values = torch.ones(4, dtype=torch.bfloat16)
        return await world.reduce_scatter((values * (256 if world.rank == 0 else 1),))

    results = [int(x) for (x,) in run(program, 4)]
    # slice 0: ranks 1, 2, 3, 0: 3 + 256 = 259 -> 260 in bfloat16 (spacing 2); slice 3: ranks 0, 1, 2, 3: 256
    assert results[0] == 260
    assert results[3] == 256


def test_a_world_of_one_talks_to_itself() -> None:
    async def program(world):
        (shifted,) = await world.ring_shift((number(7),))
        (gathered,) = await world.all_gather((shifted,))
        (summed,) = await world.reduce_scatter((gathered,))
        return (summed,)

    assert int(run(program, 1)[0][0]) == 7


def test_waiting_for_what_nobody_sends_is_a_deadlock_not_a_hang() -> None:
    async def program(world):
        if world.rank == 0:
            return (number(0),)
        return await world.ring_shift((number(1),))

    with pytest.raises(Deadlock, match="rank 1 waits for operation 1 of rank 0"):
        run(program, 2)


def test_writing_to_a_tensor_on_its_way_is_caught() -> None:
    async def program(world):
        mine = number(world.rank)
        arriving = world.ring_shift((mine,))
        mine += 1
        return await arriving

    with pytest.raises(RankFailed, match="wrote to a tensor on its way"):
        run(program, 2)


def test_a_rank_that_raises_is_named() -> None:
    async def program(world):
        if world.rank == 2:
            raise ValueError("no memory left")
        return await world.ring_shift((number(0),))

    with pytest.raises(RankFailed, match="rank 2: ValueError: no memory left"):
        run(program, 3)
