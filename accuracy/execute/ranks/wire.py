"""A connection between machines: whole objects, tensors as their bytes."""

import io
import pickle
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor


class _Pickler(pickle.Pickler):
    def reducer_override(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return NotImplemented
        content = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        return _tensor, (content, x.dtype, tuple(x.shape))


def _tensor(content: "np.ndarray[Any, Any]", dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(content).view(dtype).reshape(shape)


class Wire:
    """Speaks as `multiprocessing.connection.Connection` does, but shares no memory with the other side."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: Any) -> None:
        """Raises OSError when the other side is gone."""
        content = io.BytesIO()
        _Pickler(content, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
        self._connection.send_bytes(content.getbuffer())

    def recv(self) -> Any:
        """The next message. Raises EOFError or OSError when the other side is gone."""
        return pickle.loads(self._connection.recv_bytes())

    def poll(self, seconds: float) -> bool:
        """Whether a message, or the end, is there within the time."""
        return self._connection.poll(seconds)

    def fileno(self) -> int:
        """For `multiprocessing.connection.wait`."""
        return self._connection.fileno()

    def close(self) -> None:
        """End the connection; the other side sees it."""
        self._connection.close()
