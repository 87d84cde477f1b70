"""Numbers that are computed on a device and read together: a read is a wait for all that was launched before it, by
this process and by those that share the GPU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor

from accuracy.runtime.device import move

T = TypeVar("T")
Numbers = dict[str, np.ndarray]


@dataclass(frozen=True)
class Begun(Generic[T]):
    """parts: float64 tensors on one device; made: what they are, read, part by part; None where another pass has to
    tell."""

    parts: Mapping[str, Tensor]
    made: Callable[[Numbers], T | None]


def read(begun: Sequence[Begun[Any]]) -> list[Any]:
    """What each is, by one transfer to the host."""
    here = iter(move([x for each in begun for x in each.parts.values()], "cpu"))
    return [each.made({name: next(here).numpy() for name in each.parts}) for each in begun]
