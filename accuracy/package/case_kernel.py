"""The kernel of the case under way, for the functions of a package, which are told of tensors and a group only."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from accuracy.kernel.base import Kernel
from accuracy.kernel.flash_attn import FlashAttn
from accuracy.variant.base import Rank

_KERNEL: ContextVar[Kernel] = ContextVar("kernel of the case")


@contextmanager
def of(rank: Rank) -> Iterator[Kernel]:
    """Inside, `present` is the rank's kernel."""
    token = _KERNEL.set(rank.kernel)
    try:
        yield rank.kernel
    finally:
        _KERNEL.reset(token)


def present() -> Kernel:
    """The kernel. Backward functions that autograd may run in another thread ask in their forward."""
    return _KERNEL.get()


def is_flash_attn(kernel: Kernel) -> bool:
    """Whether the case is measured with the flash-attn package itself, so that nothing stands in for it."""
    return isinstance(kernel, FlashAttn)


def deterministic() -> bool:
    """What a package's `deterministic` is to be: the knob of kernel.flash_attn."""
    return bool(getattr(present(), "deterministic", False))
