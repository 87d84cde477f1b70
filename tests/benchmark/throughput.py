"""How many cases a minute does a grid measure, everything but the report included?

On a GPU the grid of world_size_growth with one seed; on the CPU the demo's with one seed.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from accuracy import run
from accuracy.grid import plan
from tests.composing import composed
from tests.measuring import configuration

TARGET = 600  # cases a minute on an H200; 150 was the first step; separate torchrun scripts give 3.7


def grid(device: str) -> tuple[str, ...]:
    """Its words on the command line."""
    experiment = "world_size_growth" if device == "cuda" else "demo"
    return f"experiment={experiment}", "seed=0", f"device={device}", "workers=1"


def lines(device: str) -> Iterator[str]:
    words = grid(device)
    chosen = configuration(*words)
    plans = plan(chosen, None)
    measured = sum(each.decline is None for each in plans)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        begin = time.perf_counter()
        run.execute(chosen, composed(*words), plans, Path(folder), [])
        seconds = time.perf_counter() - begin
    target = f"; target >= {TARGET}" if device == "cuda" else ""
    rate = measured / seconds * 60
    yield f"{chosen.name}, one seed: {measured} measured cases in {seconds:.1f} s, {rate:.0f} a minute{target}"
