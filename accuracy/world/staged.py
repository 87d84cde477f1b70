"""Tensors on their way from process to process, as bytes, whatever their dtype; and the handle of a transfer.

Bytes go through main memory. Where the ranks can open each other's memory of one GPU, large tensors stay there: the
sender keeps a copy, sends the handle of its memory, and the receiver reads it. Both tell by the size which way it is.
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
    """A pending operation; `finish` waits for the other ranks and writes the outputs, once."""

    def __init__(self, finish: Callable[[], object], outputs: Any) -> None:
        super().__init__()
        self._finish, self._outputs = finish, outputs
        self._lock, self._done, self._helper = threading.Lock(), False, False
        self._error: Exception | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the outputs are written; raise what went wrong. timeout: not used."""
        with self._lock:
            if not self._done:
                try:
                    self._finish()
                except Exception as error:
                    self._error = error
                self._done = True
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Say whether it has ended; the first time that this is asked a thread begins to wait."""
        if not self._done and not self._helper:
            self._helper = True  # gloo does not say whether a message has come
            stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
            threading.Thread(target=self._wait_on, args=(stream,), daemon=True).start()
        return self._done

    def _wait_on(self, stream: Any) -> None:
        """Wait, on the stream of whoever asked; what it raises is for `wait`."""
        with torch.cuda.stream(stream), suppress(Exception):
            self.wait()

    def synchronize(self) -> None:
        """Wait for the other ranks, as `wait` does."""
        self.wait()

    def get_future(self) -> Any:
        """Return a future that has the outputs."""
        self.wait()
        future: Any = torch.futures.Future()
        future.set_result(self._outputs)
        return future


def check(x: Tensor) -> None:
    """Refuse tensors that are not contiguous, as NCCL and gloo do."""
    if not x.is_contiguous():
        raise ValueError("Tensors must be contiguous")


LEAST_OPENED = 2**21
"""Bytes from which a tensor stays on the GPU: of 2 to 16 ranks on an H100, main memory is as fast below
(reports/benchmark/nvidia-h100/shared_ranks.txt)."""
HANDLE_BYTES = 2**10


def stays(x: Tensor, opened: bool) -> bool:
    """Say whether a tensor stays on the GPU. opened: whether the ranks open each other's memory."""
    return opened and x.is_cuda and x.nbytes >= LEAST_OPENED


def copies(tensors: Sequence[Tensor], opened: bool = False) -> list[Tensor]:
    """Return copies of tensors' bytes, on the current stream: of those that stay, on the GPU; of the others in main
    memory, by one transfer, since on a shared GPU each transfer waits for its turn."""
    for x in tensors:
        check(x)
    flat = [x.detach().reshape(-1).view(torch.uint8) for x in tensors]
    found = [x.clone() if stays(x, opened) or not x.is_cuda else x for x in flat]
    staged = [n for n, x in enumerate(flat) if x.is_cuda and not stays(x, opened)]
    if staged:
        whole = torch.cat([flat[n] for n in staged])
        kept = torch.empty(len(whole), dtype=torch.uint8, pin_memory=True)  # which torch keeps for the next
        for n, part in zip(staged, kept.copy_(whole).split([len(flat[n]) for n in staged]), strict=True):
            found[n] = part
    return found


def on_wire(copied: Tensor) -> Tensor:
    """Return what is sent of a copy: its bytes, or the handle of its memory, which torch keeps until it is read."""
    if not copied.is_cuda:
        return copied
    return _padded(bytes(ForkingPickler.dumps(copied)))


def room_for(tensors: Sequence[Tensor], opened: bool = False) -> list[Tensor]:
    """Return main memory for what is received of each tensor."""
    for x in tensors:
        check(x)
    return [
        torch.empty(HANDLE_BYTES if stays(x, opened) else x.nbytes, dtype=torch.uint8, pin_memory=x.is_cuda)
        for x in tensors
    ]


def typed(received: Tensor, x: Tensor) -> Tensor:
    """Return what was received, bytes or a handle, as a tensor of x's dtype and shape. Another process's memory has to
    be used on the current stream: torch lets go of it after that stream's work."""
    if len(received) != x.nbytes:
        received = pickle.loads(received.numpy().tobytes())
    return received.view(x.dtype).view(x.shape)


def typed_each(received: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """Return `typed` of what each rank sent, on x's device."""
    return [typed(each, x).to(x.device, non_blocking=True) for each in received]


def write(x: Tensor, received: Tensor) -> None:
    """Write to x on the current stream, without telling autograd, as NCCL does."""
    x.data.copy_(typed(received, x), non_blocking=True)


def write_each(outputs: Sequence[Tensor], received: Sequence[Tensor]) -> None:
    """Write the bytes that came from each rank to that rank's output."""
    for x, each in zip(outputs, received, strict=True):
        write(x, each)


def opens_others(gloo: Any, rank: int, size: int) -> bool:
    """Say, alike on every rank, whether all ranks compute on one GPU and can open each other's memory: not where one of
    them has not begun to use it. Every rank calls it."""

    def told(text: bytes) -> list[bytes]:
        heard = [torch.empty(HANDLE_BYTES, dtype=torch.uint8) for _ in range(size)]
        gloo.allgather([heard], [_padded(text)]).wait()
        return [each.numpy().tobytes() for each in heard]

    begun = torch.cuda.is_initialized()
    gpu = f"{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}" if begun else ""
    if len({gpu.encode(), *(each.rstrip(b"\0") for each in told(gpu.encode()))}) > 1 or not gpu:
        return False
    probe, handle, opened = torch.zeros(1, dtype=torch.uint8, device="cuda"), b"", b""
    with suppress(RuntimeError):  # a machine may forbid it
        handle = on_wire(probe).numpy().tobytes()
    handles = told(handle)
    with suppress(RuntimeError, pickle.UnpicklingError):
        pickle.loads(handles[(rank + 1) % size]).cpu()
        opened = b"opened"
    return all(any(each) for each in told(opened))


def _padded(text: bytes) -> Tensor:
    if len(text) > HANDLE_BYTES:
        raise RuntimeError(f"torch's handle of a GPU's memory has {len(text)} bytes, and {HANDLE_BYTES} are sent")
    return torch.frombuffer(bytearray(text.ljust(HANDLE_BYTES, b"\0")), dtype=torch.uint8)


def events(outputs: Any) -> list[Any]:
    """Return an event behind all work so far of the current stream, of each device of (lists of) tensors."""
    flat = [x for each in outputs for x in ([each] if isinstance(each, Tensor) else each)]
    devices = {x.device for x in flat if x.is_cuda}
    return [torch.cuda.current_stream(each).record_event() for each in devices]


def wait_for(begun: Sequence[Any]) -> None:
    """Let the current stream wait for what `events` returned."""
    for event in begun:
        event.wait()
