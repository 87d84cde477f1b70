"""How does the cost grow: of an assertion and of the reference by tokens, of a case by ranks, of a report by rows, of a
plan by cases?

    python -m bench.growth FOLDER     # writes costs.txt and costs.svg there

The exponent is that of the last step: a size twice as large takes 2 to this power times as long.
"""

import itertools
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

import accuracy
from accuracy.report.build import write_report
from accuracy.runtime import arithmetic
from accuracy.runtime import device as devices
from bench import truth, waits
from tests.unit.report.synthetic import LARGE, write_large_run


class Growth(NamedTuple):
    """what: what costs; of: what its sizes are; seconds: by size."""

    what: str
    of: str
    seconds: dict[int, float]

    @property
    def exponent(self) -> float:
        (a, b), *_ = reversed([*itertools.pairwise(self.seconds)])
        return math.log(self.seconds[b] / self.seconds[a]) / math.log(b / a)

    def __str__(self) -> str:
        shown = ", ".join(f"{size:,}: {each:.3g} s" for size, each in self.seconds.items())
        return f"{self.what}, {self.of}: {shown}; the last step grows like {self.of}^{self.exponent:.2f}"


def measured(device: str) -> Iterator[Growth]:
    more = 16 if device == "cuda" else 1  # a GPU is measured at longer sequences
    kinds: list[tuple[str, str, list[int], Callable[[int], float]]] = [
        ("assert_close, 4 heads of 64", "tokens", [512 * more, 1024 * more, 2048 * more, 4096 * more],
         lambda tokens: waits.assertion(device, 1, tokens, 4, 4, 64)[0]),
        ("reference, 8 heads of 128", "tokens", [512 * more, 1024 * more, 2048 * more, 4096 * more],
         lambda tokens: _reference(device, tokens)),
        ("a case of ring, 4,096 tokens", "ranks", [1, 4, 16, 64, 256, 1024], lambda ranks: _case(device, ranks)),
        ("report", "rows", [12_500, 25_000, 50_000, 100_000], _report),
        ("plan", "cases", [1_000, 10_000, 100_000], _plan),
    ]  # fmt: skip
    for what, of, sizes, seconds in kinds:
        yield Growth(what, of, {size: float(f"{seconds(size):.3g}") for size in sizes})


def _reference(device: str, tokens: int) -> float:
    tensors = truth.draw(tokens, truth.HEADS, device)
    return truth.best(lambda: truth.reference(tensors), device)


def _case(device: str, ranks: int) -> float:
    """The second of two cases of the same size, as the table says it."""
    how = {"world_size": ranks, "seqlen": 4096, "batch": 1, "heads": 2, "head_dim": 64, "device": device}
    rows = accuracy.measure("ring", seed=[0, 1], progress=False, **how)  # type: ignore[arg-type]
    return float(rows.loc[rows["seed"] == 1, "seconds"].max())


def _report(rows: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = write_large_run(Path(folder), replace(LARGE, seeds=range(10)), rows)
        begin = time.perf_counter()
        write_report(run)
        return time.perf_counter() - begin


def _plan(cases: int) -> float:
    words = ["variant=[ring,zigzag,striped,llama3]", "world_size=[1,2,4,8,16]", "dry_run=true", "kernel=eager"]
    words.append(f"seed={[*range(cases // 20)]}".replace(" ", ""))
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "accuracy", *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def draw(found: list[Growth], title: str) -> Figure:
    """A panel for each, both axes logarithmic."""
    plt.rcParams["svg.fonttype"], plt.rcParams["svg.hashsalt"] = "none", "growth"
    figure = Figure(figsize=(3 * len(found), 3), layout="constrained")
    figure.suptitle(title)
    for axes, each in zip(figure.subplots(1, len(found)), found, strict=True):
        axes.loglog([*each.seconds], [*each.seconds.values()], marker="o")
        axes.set(title=f"{each.what}\n{each.of}^{each.exponent:.2f}", xlabel=each.of, ylabel="seconds")
        axes.set_xticks([*each.seconds], [f"{size:,}" for size in each.seconds], rotation=45)
        ends = min(each.seconds.values()), max(each.seconds.values())
        axes.set_yticks(ends, [f"{seconds:.2g}" for seconds in ends])
        axes.minorticks_off()
    return figure


def main(folder: str) -> None:
    arithmetic.make_exact()
    here = devices.choose("auto")
    title = f"{devices.name(here)}, torch {torch.__version__}"
    found = []
    for each in measured(here):
        print(each, flush=True)
        found.append(each)
    Path(folder).mkdir(parents=True, exist_ok=True)
    text = "\n".join([f"python -m bench.growth; {title}", *map(str, found)])
    (Path(folder) / "costs.txt").write_text(f"{text}\n")
    draw(found, title).savefig(Path(folder) / "costs.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
