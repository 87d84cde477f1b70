"""How much faster is a grid on all GPUs of the machine than on one? The grid of `throughput`, references not kept.

`python -m bench.many_gpus [KEY=VALUE ...]` runs it alone; on a CPU with two processes in place of GPUs. One
GPU is one new worker process, too, whose start more GPUs do not shorten: words make the grid larger.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import torch

from accuracy.config.read import Configuration
from accuracy.core.case import Case
from accuracy.execute import dispatch, pool
from accuracy.execute.plan import plan
from accuracy.runtime import arithmetic
from accuracy.runtime import device as devices
from bench import throughput
from tests.measuring import configuration

TARGETS = {4: 3.5}  # times one GPU, by the number of GPUs


def lines(device: str, most: int | None = None, words: Sequence[str] = ()) -> Iterator[str]:
    """most: workers; None: as many as GPUs."""
    most = most or (len(devices.alike()) if device == "cuda" else 0)
    if most < 2:
        yield f"many GPUs: not measured, there is {most or 'no'} GPU"
        return
    chosen = configuration(*throughput.grid(device), *words)
    cases = [each.case for each in plan(chosen, None) if each.unsupported is None]
    spent(chosen, [case for case in cases if case.world_size == 2], 1)  # what is compiled to the disk is there now
    one: list[float] = []
    for workers in [number for number in (1, 2, 4, 8) if number <= most]:
        whole, measuring = spent(chosen, cases, workers)
        one = one or [whole, measuring]
        what = "GPU" if device == "cuda" else "process"
        target = f"; target >= {TARGETS[workers]}" if workers in TARGETS and device == "cuda" else ""
        yield (
            f"{chosen.name}, {len(cases)} cases, {what} x {workers}: {measuring:.1f} s from the first case on,"
            f" {one[1] / measuring:.2f} times one{target}; {whole:.1f} s with the start of processes,"
            f" {one[0] / whole:.2f} times one"
        )


def spent(chosen: Configuration, cases: Sequence[Case], workers: int) -> tuple[float, float]:
    """Seconds with and without the start of the workers, which ends when the first of them takes a case; torch has been
    imported for all of them by then, where it is not the first call."""
    begun: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        work = dispatch.work(chosen, Path(folder), workers)
        start = time.perf_counter()
        with closing(pool.measure(cases, work, lambda case: begun.append(time.perf_counter()))) as ended:
            statuses = set(ended)
        end = time.perf_counter()
    assert statuses == {"ok"}, statuses
    return end - start, end - begun[0]


def main() -> None:
    arithmetic.make_exact()
    here = devices.choose("auto")
    print(f"{devices.name(here)}, torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    for line in lines(here, None if here == "cuda" else 2, sys.argv[1:]):
        print(line, flush=True)


if __name__ == "__main__":  # the workers import this module
    main()
