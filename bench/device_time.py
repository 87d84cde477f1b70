"""What a GPU did in a stretch of work, out of torch's profiler: seconds and launches of attention and of all else."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

ATTENTION = ("flash", "fmha", "_attend", "_carry", "_forward_kernel", "_backward_kernel", "cudnn")
"""Of a kernel of attention, some part of its name."""


@dataclass
class DeviceTime:
    """Of each kind: seconds and launches, by the kernel's name. busy: seconds in which the GPU did anything."""

    seconds: Counter[str] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)
    busy: float = 0.0

    @classmethod
    def of(cls, spans: Iterable[tuple[str, float, float]]) -> "DeviceTime":
        """Of kernels, copies and fills: name, begin and end in seconds. What overlaps counts once in `busy`."""
        found, reached = cls(), float("-inf")
        for name, begin, end in sorted(spans, key=lambda span: span[1]):
            found.seconds[name] += end - begin
            found.launches[name] += 1
            found.busy += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
        return found

    def part(self, attention: bool) -> tuple[float, int]:
        """Seconds and launches of the attention kernels, or of all others."""
        names = [name for name in self.seconds if is_attention(name) is attention]
        return sum(self.seconds[name] for name in names), sum(self.launches[name] for name in names)

    def top(self, count: int) -> Iterator[str]:
        """The kernels that take most, a line each."""
        for name, seconds in self.seconds.most_common(count):
            yield f"    {seconds * 1e3:8.2f} ms {self.launches[name]:6d} x  {short(name)}"


def is_attention(name: str) -> bool:
    """Whether a kernel is one of attention."""
    return any(part in name for part in ATTENTION)


def short(name: str) -> str:
    """A kernel's name without its return type, as far as a line has room."""
    return name.removeprefix("void ")[:110]


def profiled(work: Callable[[], object]) -> DeviceTime:
    """Of a piece of work on a GPU, run once."""
    with torch.profiler.profile() as profile:  # of the CPU, and of CUDA where there is a device
        work()
        wait()
    return DeviceTime.of(_spans(profile.events() or ()))


def wait() -> None:
    """Until the GPU, if there is one, has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _spans(events: Iterable[Any]) -> Iterator[tuple[str, float, float]]:
    """The events that a GPU has done; the profiler counts microseconds."""
    for event in events:
        if event.device_type == torch.autograd.DeviceType.CUDA and not getattr(event, "is_user_annotation", False):
            yield event.name, event.time_range.start * 1e-6, event.time_range.end * 1e-6


def between_events(call: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds that a GPU takes for each of several calls; what the CPU does before the first launch is not in."""
    times = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return times
