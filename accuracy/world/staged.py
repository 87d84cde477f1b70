"""Tensors on their way through main memory: as bytes, whatever their dtype; and the handle of what is under way."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
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


def to_host(x: Tensor) -> Tensor:
    """A copy in main memory, once the current stream has computed it."""
    return to_host_each([x])[0]


def to_host_each(tensors: Sequence[Tensor]) -> list[Tensor]:
    """As `to_host`, of several by one transfer: on a shared GPU each one waits for the other processes' turns."""
    for x in tensors:
        check(x)
    flat = [x.detach().reshape(-1).view(torch.uint8) for x in tensors]
    if not any(x.is_cuda for x in flat):
        return [x.clone() for x in flat]
    whole = torch.cat(flat) if len(flat) > 1 else flat[0]
    kept = torch.empty(len(whole), dtype=torch.uint8, pin_memory=True)  # torch keeps it for the next of that size
    return list(kept.copy_(whole).split([len(x) for x in flat]))


def empty_for(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Main memory for as many bytes as each tensor has."""
    for x in tensors:
        check(x)
    return [torch.empty(x.numel() * x.element_size(), dtype=torch.uint8, pin_memory=x.is_cuda) for x in tensors]


def typed_each(received: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """Bytes of several ranks as tensors of x's dtype, shape and device."""
    return [each.view(x.dtype).view(x.shape).to(x.device, non_blocking=True) for each in received]


def write(x: Tensor, received: Tensor) -> None:
    """As NCCL does, without telling autograd that x has changed; on the current stream."""
    x.data.copy_(received.view(x.dtype).view(x.shape), non_blocking=True)


def write_each(outputs: Sequence[Tensor], received: Sequence[Tensor]) -> None:
    """Write the bytes that came from each rank to that rank's output."""
    for x, each in zip(outputs, received, strict=True):
        write(x, each)


def events(outputs: Any) -> list[Any]:
    """What the current streams have been given so far, of the devices of (lists of) tensors."""
    flat = [x for each in outputs for x in ([each] if isinstance(each, Tensor) else each)]
    devices = {x.device for x in flat if x.is_cuda}
    return [torch.cuda.current_stream(each).record_event() for each in devices]
