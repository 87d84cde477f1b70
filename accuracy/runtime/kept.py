"""What a user's function sets in this process is undone: neither the caller nor the next case finds it changed."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from accuracy.runtime import arithmetic


def _folder() -> str:
    """ "" where the current folder is gone."""
    with suppress(OSError):
        return os.getcwd()
    return ""


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(given: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(given[0], warn_only=given[1])


def _autocast() -> tuple[bool, bool]:
    return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _set_autocast(given: tuple[bool, bool]) -> None:
    for device, enabled in zip(("cpu", "cuda"), given, strict=True):
        torch.set_autocast_enabled(device, enabled)


def _attention_backends() -> tuple[bool, ...]:
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()


def _set_attention_backends(given: tuple[bool, ...]) -> None:
    cuda = torch.backends.cuda
    setters = cuda.enable_flash_sdp, cuda.enable_mem_efficient_sdp, cuda.enable_math_sdp, cuda.enable_cudnn_sdp
    for setter, enabled in zip(setters, given, strict=True):
        setter(enabled)


def _set_default_device(given: torch.device) -> None:
    torch.set_default_device(None if given.type == "cpu" else given)


SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, _set_default_device),
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (_deterministic, _set_deterministic),
    (_autocast, _set_autocast),
    (_attention_backends, _set_attention_backends),
    (arithmetic.switches, arithmetic.set_switches),
    (_folder, lambda folder: os.chdir(folder) if folder else None),
)


@contextmanager
def settings() -> Iterator[None]:
    """torch's settings that change numbers, and the current folder, are afterwards as before."""
    before = [get() for get, _ in SETTINGS]
    try:
        yield
    finally:
        for (get, put), value in zip(SETTINGS, before, strict=True):
            if get() != value:
                put(value)


@contextmanager
def random_state() -> Iterator[None]:
    """The states of torch's, numpy's and Python's generators are afterwards as before."""
    on_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    gpus = torch.cuda.get_rng_state_all() if on_cuda else []
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
