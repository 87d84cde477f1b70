"""Tensors on their way from process to process, as bytes, whatever their dtype; and the handle of what is under way.

Bytes go through main memory. Where the ranks can open each other's memory of one GPU, large tensors stay there: the
sender keeps a copy, sends the name of its memory, and the receiver reads it. Both sides know from the size which it is.
"""

import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Work(dist._Work):
    """What is under way; `finish` waits for the wire and writes to the outputs, once."""

    def __init__(self, finish: Callable[[], object], outputs: Any) -> None:
        super().__init__()
        self._finish, self._outputs = finish, outputs
        self._lock, self._done, self._helper = threading.Lock(), False, False
        self._future: Any = torch.futures.Future()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the other ranks; the outputs are written then."""
        with self._lock:
            if not self._done:
                self._finish()
                self._done = True
                self._future.set_result(self._outputs)
        return True

    def is_completed(self) -> bool:
        """Say whether the outputs are written; who asks again and again needs not wait."""
        if not self._done and not self._helper:
            self._helper = True  # gloo does not say whether a message has come
            threading.Thread(target=self.wait, daemon=True).start()
        return self._done

    def is_success(self) -> bool:
        """Say whether the outputs are written."""
        return self._done

    def synchronize(self) -> None:
        """Wait for the other ranks, as `wait` does."""
        self.wait()

    def result(self) -> Any:
        """Return the outputs, once they are written."""
        self.wait()
        return self._outputs

    def get_future(self) -> Any:
        """Return a future that has the outputs."""
        self.wait()
        return self._future


def check(x: Tensor) -> None:
    """NCCL and gloo refuse such tensors, too."""
    if not x.is_contiguous():
        raise ValueError("Tensors must be contiguous")


LEAST_OPENED = 2**21
"""Bytes from which a tensor stays on the GPU: of 2 to 16 ranks on an H100, main memory is as fast below
(reports/benchmark/nvidia-h100/shared_ranks.txt)."""
NAME_LENGTH = 2**10  # bytes of a memory's name on the wire


def stays(x: Tensor, opened: bool) -> bool:
    """Say whether a tensor stays on the GPU. opened: whether the ranks open each other's memory."""
    return opened and x.is_cuda and x.nbytes >= LEAST_OPENED


def copies(tensors: Sequence[Tensor], opened: bool = False) -> list[Tensor]:
    """Return the bytes of tensors, which the current stream has computed: on the GPU where they stay, the others in
    main memory by one transfer, since on a shared GPU each one waits for the other processes' turns."""
    for x in tensors:
        check(x)
    flat = [x.detach().reshape(-1).view(torch.uint8) for x in tensors]
    found = [x.clone() if stays(x, opened) or not x.is_cuda else x for x in flat]
    staged = [n for n, x in enumerate(flat) if x.is_cuda and not stays(x, opened)]
    if staged:
        whole = torch.cat([flat[n] for n in staged])
        kept = torch.empty(len(whole), dtype=torch.uint8, pin_memory=True)  # torch keeps it for the next of that size
        for n, part in zip(staged, kept.copy_(whole).split([len(flat[n]) for n in staged]), strict=True):
            found[n] = part
    return found


def on_wire(copied: Tensor) -> Tensor:
    """Return what is sent of a copy: its bytes, or the name of its memory, which torch keeps until it has been read."""
    if not copied.is_cuda:
        return copied
    return _padded(bytes(ForkingPickler.dumps(copied)))


def room_for(tensors: Sequence[Tensor], opened: bool = False) -> list[Tensor]:
    """Return main memory for what is received of each tensor."""
    for x in tensors:
        check(x)
    return [
        torch.empty(NAME_LENGTH if stays(x, opened) else x.nbytes, dtype=torch.uint8, pin_memory=x.is_cuda)
        for x in tensors
    ]


def typed(received: Tensor, x: Tensor) -> Tensor:
    """Return what was received as a tensor of x's dtype and shape; what is read out of another process's memory has to
    be used on the current stream, for which torch waits before it lets go of it."""
    if len(received) != x.nbytes:
        received = pickle.loads(received.numpy().tobytes())
    return received.view(x.dtype).view(x.shape)


def typed_each(received: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """As `typed`, of several ranks and on x's device."""
    return [typed(each, x).to(x.device, non_blocking=True) for each in received]


def write(x: Tensor, received: Tensor) -> None:
    """As NCCL does, without telling autograd that x has changed; on the current stream."""
    x.data.copy_(typed(received, x), non_blocking=True)


def write_each(outputs: Sequence[Tensor], received: Sequence[Tensor]) -> None:
    """Write the bytes that came from each rank to that rank's output."""
    for x, each in zip(outputs, received, strict=True):
        write(x, each)


def opens_others(gloo: Any, rank: int, size: int) -> bool:
    """Say, alike on every rank, whether all ranks compute on one GPU and can open each other's memory. Every rank calls
    it. A process that has not begun to use its GPU goes without."""

    def told(text: bytes) -> list[bytes]:
        heard = [torch.empty(NAME_LENGTH, dtype=torch.uint8) for _ in range(size)]
        gloo.allgather([heard], [_padded(text)]).wait()
        return [each.numpy().tobytes() for each in heard]

    begun = torch.cuda.is_initialized()
    gpu = f"{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}" if begun else ""
    if len({gpu.encode(), *(each.rstrip(b"\0") for each in told(gpu.encode()))}) > 1 or not gpu:
        return False
    probe, name, opened = torch.zeros(1, dtype=torch.uint8, device="cuda"), b"", b""
    with suppress(RuntimeError):  # a machine may forbid it
        name = on_wire(probe).numpy().tobytes()
    names = told(name)
    with suppress(RuntimeError, pickle.UnpicklingError):
        pickle.loads(names[(rank + 1) % size]).cpu()
        opened = b"opened"
    return all(any(each) for each in told(opened))


def _padded(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text.ljust(NAME_LENGTH, b"\0")), dtype=torch.uint8)


def events(outputs: Any) -> list[Any]:
    """What the current streams have been given so far, of the devices of (lists of) tensors."""
    flat = [x for each in outputs for x in ([each] if isinstance(each, Tensor) else each)]
    devices = {x.device for x in flat if x.is_cuda}
    return [torch.cuda.current_stream(each).record_event() for each in devices]
