"""What each rank does in `test_shared_gpu.py`: every operation over the shared backend, beside gloo's own, beside
NCCL's where each rank has a GPU, beside what the operation is defined to give, and, of sums, beside a sum in the ring's
order that shares no code with it."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial, reduce
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from accuracy.execute import leftovers
from accuracy.world import shared_gpu, staged, sums
from tests.contract.world import handles

DTYPES = (
    "bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int64", "uint8", "bool", "complex64",
)  # fmt: skip
SUMMED = ("bfloat16", "float16", "float32", "float64", "int64")
ROWS, WIDTH = 3, 5
Make = Callable[[int, int], Tensor]
"""A rank's tensor of so many rows."""


def made(dtype: torch.dtype, device: str, rank: int, rows: int) -> Tensor:
    """As unlike in every byte as the dtype allows."""
    values = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rank + 100 * rows), dtype=torch.float64)
    values = values > 0 if dtype is torch.bool else values if dtype.is_floating_point else 100 * values
    return values.to(dtype).to(device)


def in_bytes(dtype: torch.dtype, device: str, rank: int, rows: int) -> Tensor:
    """The same, for a backend that lacks the dtype."""
    return made(dtype, device, rank, rows).view(torch.uint8)


def splits(rank: int, size: int) -> list[int]:
    """How many rows a rank sends to each: not as many, to some none."""
    return [(rank + other) % 3 for other in range(size)]


def p2p(make: Make, rank: int, size: int, group: dist.ProcessGroup) -> tuple[list[Tensor], list[Tensor]]:
    here, there = torch.empty_like(make(rank, ROWS)), torch.empty_like(make(rank, 1))
    after, before = (rank + 1) % size, (rank - 1) % size
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, make(rank, ROWS), group=group, group_peer=after),
        dist.P2POp(dist.isend, make(rank, 1), group=group, group_peer=after),
        dist.P2POp(dist.irecv, here, group=group, group_peer=before),
        dist.P2POp(dist.irecv, there, group=group, group_peer=before),
    ])  # fmt: skip
    for work in works:
        work.wait()
    if rank == 0:
        dist.send(make(0, 2), group=group, group_dst=1)
    blocking = torch.empty_like(make(0, 2)) if rank == 1 else make(0, 2)
    if rank == 1:
        dist.recv(blocking, group=group, group_src=0)
    return [here, there, blocking], [make(before, ROWS), make(before, 1), make(0, 2)]


def all_gather(make: Make, rank: int, size: int, group: dist.ProcessGroup) -> tuple[list[Tensor], list[Tensor]]:
    mine, expected = make(rank, ROWS), [make(other, ROWS) for other in range(size)]
    listed, single = [torch.empty_like(mine) for _ in range(size)], mine.new_empty(size * ROWS, mine.shape[1])
    works = [
        dist.all_gather(listed, mine, group=group, async_op=True),
        dist.all_gather_into_tensor(single, mine, group=group, async_op=True),
    ]
    works[1].wait()  # not in the order in which they began
    works[0].wait()
    return [*listed, single], [*expected, torch.cat(expected)]


def all_to_all(make: Make, rank: int, size: int, group: dist.ProcessGroup) -> tuple[list[Tensor], list[Tensor]]:
    mine, out = make(rank, size), torch.empty_like(make(rank, size))
    dist.all_to_all_single(out, mine, group=group)
    gives, takes = splits(rank, size), [splits(other, size)[rank] for other in range(size)]
    uneven = mine.new_empty(sum(takes), mine.shape[1])
    dist.all_to_all_single(uneven, make(rank, sum(gives)), takes, gives, group=group)
    theirs = [make(other, sum(splits(other, size))).split(splits(other, size))[rank] for other in range(size)]
    return [out, uneven], [torch.stack([make(other, size)[rank] for other in range(size)]), torch.cat(theirs)]


def from_one(make: Make, rank: int, size: int, group: dist.ProcessGroup) -> tuple[list[Tensor], list[Tensor]]:
    root, mine, scattered = size - 1, make(rank, ROWS), torch.empty_like(make(rank, ROWS))
    dist.broadcast(mine, group=group, group_src=root)
    parts = [make(other, ROWS) for other in range(size)] if rank == root else None
    dist.scatter(scattered, parts, group=group, group_src=root)
    gathered = [torch.empty_like(mine) for _ in range(size)] if rank == root else None
    dist.gather(make(rank, ROWS), gathered, group=group, group_dst=root)
    expected = [make(other, ROWS) for other in range(size)] if rank == root else []
    return [mine, scattered, *(gathered or [])], [make(root, ROWS), make(rank, ROWS), *expected]


MOVES = {"p2p": p2p, "all_gather": all_gather, "all_to_all": all_to_all, "from_one": from_one}


def beyond_gloo(make: Make, rank: int, size: int, group: dist.ProcessGroup) -> tuple[list[Tensor], list[Tensor]]:
    """What gloo has not: a list all-to-all, unequal tensors, one's own messages, functional collectives of a mesh."""
    outs = [torch.empty_like(make(other, rank + 1)) for other in range(size)]
    dist.all_to_all(outs, [make(rank, other + 1) for other in range(size)], group=group)
    unequal = [torch.empty_like(make(other, other + 1)) for other in range(size)]
    dist.all_gather(unequal, make(rank, rank + 1), group=group)
    own = torch.empty_like(make(rank, 1))
    to_itself = [(dist.isend, make(rank, 1)), (dist.irecv, own)]
    for work in dist.batch_isend_irecv([dist.P2POp(what, x, group=group, group_peer=rank) for what, x in to_itself]):
        work.wait()
    mesh, shifted = DeviceMesh.from_group(group, own.device.type), [(other + 1) % size for other in range(size)]
    found = [
        functional.all_gather_tensor(make(rank, ROWS), 0, mesh),
        functional.permute_tensor(make(rank, ROWS).flatten(), shifted, mesh),
        functional.broadcast(make(rank, ROWS), 1, group),
        *functional.all_gather_into_tensor_coalesced([make(rank, 1), make(rank, 2)], group),
    ]
    several = [torch.cat([make(other, rows) for other in range(size)]) for rows in (1, 2)]
    expected = [make(other, rank + 1) for other in range(size)] + [make(other, other + 1) for other in range(size)]
    expected += [make(rank, 1), torch.cat([make(other, ROWS) for other in range(size)]), make((rank - 1) % size, ROWS)]
    return [*outs, *unequal, own, *map(functional.wait_tensor, found)], [*expected, make(1, ROWS), *several]


def in_order(parts: Sequence[Tensor], owner: int) -> Tensor:
    total = parts[(owner + 1) % len(parts)]
    for hop in range(2, len(parts) + 1):
        total = total + parts[(owner + hop) % len(parts)]
    return total


def reductions(make: Make, rank: int, size: int, group: dist.ProcessGroup) -> tuple[list[Tensor], list[Tensor]]:
    """Every sum; of all ranks' tensors part j, of W equal ones, is of rank j."""
    whole = [make(other, size) for other in range(size)]
    expected = [in_order([x[owner] for x in whole], owner) for owner in range(size)]
    mine = whole[rank]
    every, to_root = mine.clone(), mine.clone()
    dist.all_reduce(every, group=group)
    dist.reduce(to_root, group=group, group_dst=0)
    row, listed = mine.new_empty(1, WIDTH), mine.new_empty(WIDTH)
    dist.reduce_scatter_tensor(row, mine, group=group)
    dist.reduce_scatter(listed, list(mine.unbind()), group=group)
    found = [every, row[0], listed]
    wanted = [torch.stack(expected), expected[rank], expected[rank]]
    found += [functional.reduce_scatter_tensor(mine, "sum", 0, group), functional.all_reduce(mine, "sum", group)]
    wanted += [expected[rank][None], wanted[0]]
    if rank == 0:
        found, wanted = [*found, to_root], [*wanted, in_order(whole, 0)]
    return [*map(functional.wait_tensor, found)], wanted


def same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    pairs = [(x.cpu().contiguous().view(torch.uint8), y.cpu().contiguous().view(torch.uint8))
             for x, y in zip(found, expected, strict=True)]  # fmt: skip
    return all(torch.equal(x.view(-1), y.view(-1)) for x, y in pairs)


def wrong(rank: int, size: int, device: str, dtypes: Sequence[str]) -> list[str]:
    """What does not give what it should; on the first ranks in a group of their own, too."""
    groups = {"shared": dist.group.WORLD, "gloo": dist.new_group(backend="gloo"), "two": dist.new_group([0, 1])}
    devices = {"gloo": "cpu"}
    if device == "cuda" and torch.cuda.device_count() >= size:
        groups["nccl"], devices["nccl"] = dist.new_group(backend="nccl"), "cuda"
    found = handles.found(rank, size, device)
    for name in dtypes:
        dtype = getattr(torch, name)
        make: Make = partial(made, dtype, device)
        for operation, run in {**MOVES, "beyond gloo": beyond_gloo}.items():
            results, expected = run(make, rank, size, groups["shared"])
            fine = same(results, expected) and all(x.device.type == device for x in results)
            for other, its_device in devices.items() if operation in MOVES else ():
                fine &= same(results, run(partial(in_bytes, dtype, its_device), rank, size, groups[other])[0])
            found += [] if fine else [f"{operation} of {name}"]
            if rank < 2 and not same(*run(make, rank, 2, groups["two"])):
                found.append(f"{operation} of {name} in a group of two")
        if name in SUMMED:
            added, expected = reductions(make, rank, size, groups["shared"])
            if not same(added, expected):
                found.append(f"sums of {name}")
            one_order = "nccl" in groups and size == 2
            if one_order and not same(added, reductions(make, rank, size, groups["nccl"])[0]):
                found.append(f"NCCL's sums of {name}")
    dist.barrier()
    return found


FAULTS = {
    "none": (),
    "a lost byte": (staged, "write", lambda x, received: x.data.copy_(
        staged.typed(received, x).view(-1).view(torch.uint8).roll(1).view(x.dtype).view(x.shape))),
    "another order": (sums, "_around", lambda parts, owner, add: reduce(add, parts)),
    "a neighbour's part": (staged, "write_each", lambda outputs, received: [
        staged.write(x, y if (len(y), other.nbytes) == (len(z), x.nbytes) else z) for x, other, y, z in
        zip(outputs, [*outputs[1:], outputs[0]], [*received[1:], received[0]], received, strict=True)]),
}  # fmt: skip


def live(rank: int, size: int, device: str, faults: Mapping[str, Sequence[str]], folder: str) -> None:
    """A rank's life: with each fault it writes what is wrong to a file."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    opened = device == "opened"  # every tensor is read out of the sender's memory on the GPU, whatever its size
    if opened:
        os.environ["CUDA_VISIBLE_DEVICES"], staged.LEAST_OPENED, device = "0", 2, "cuda"
    sent = mock.patch.object(staged, "on_wire", side_effect=staged.on_wire).start()
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group(shared_gpu.NAME, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=120))
    for fault, dtypes in faults.items():
        try:
            with mock.patch.object(*FAULTS[fault]) if FAULTS[fault] else mock.MagicMock():
                found = wrong(rank, size, device, dtypes)
            if any(call.args[0].is_cuda and len(call.args[0]) > 1 for call in sent.call_args_list) != opened:
                found.append("tensors stay on the GPU or in main memory, as was not asked")
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        (Path(folder) / f"{fault} {rank}").write_text("\n".join(found))
    os._exit(0)


def found_by_ranks(size: int, device: str, faults: Mapping[str, Sequence[str]]) -> dict[str, list[set[str]]]:
    """Start so many ranks, let each try every operation with each fault planted, and return by fault and rank what it
    found wrong. faults: the dtypes in which each is tried."""
    context = get_context("forkserver" if device == "cpu" else "spawn")
    context.set_forkserver_preload(["torch", "accuracy.world.shared_gpu"])
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=live, args=(rank, size, device, faults, folder)) for rank in range(size)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join(150)
            each.kill()
        leftovers.remove_shared_memory(each.pid or 0 for each in ranks)
        files = {fault: [Path(folder) / f"{fault} {rank}" for rank in range(size)] for fault in faults}
        return {fault: [{*path.read_text().splitlines()} for path in paths] for fault, paths in files.items()}
