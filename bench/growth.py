"""How does a cost grow: of an assertion and the reference by tokens, a case by ranks, a report by rows, a plan?

    python -m bench.growth FOLDER     # writes costs.txt and costs.svg there

The exponent is that of the last step: a size twice as large takes 2 to this power times as long.
"""

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
        *_, (small, before), (large, after) = self.seconds.items()
        return math.log(after / before) / math.log(large / small)

    def __str__(self) -> str:
        shown = ", ".join(f"{size:,}: {each:.3g} s" for size, each in self.seconds.items())
        return f"{self.what}, {self.of}: {shown}; the last step grows like {self.of}^{self.exponent:.2f}"


def measured(device: str) -> Iterator[Growth]:
    tokens = [512 * 2**step for step in range(8 if device == "cuda" else 4)]
    kinds: list[tuple[str, str, list[int], Callable[[int], float]]] = [
        ("assert_close, 4 heads of 64", "tokens", tokens, lambda size: waits.assertion(device, 1, size, 4, 4, 64)[0]),
        ("reference, 8 heads of 128", "tokens", tokens, lambda size: _reference(device, size)),
        ("a case of ring, 4,096 tokens", "ranks", [1, 4, 16, 64, 256, 1024], lambda ranks: _case(device, ranks)),
        ("report", "rows", [12_500, 25_000, 50_000, 100_000], _report),
        ("plan", "cases", [1_000, 10_000, 100_000], _plan),
    ]
    for what, of, sizes, seconds in kinds:
        yield Growth(what, of, {size: seconds(size) for size in sizes})


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


def draw(found: list[Growth], title: str, to: Path) -> None:
    """A panel for each, both axes logarithmic."""
    plt.rcParams["svg.fonttype"], plt.rcParams["svg.hashsalt"] = "none", "growth"
    figure, panels = plt.subplots(1, len(found), figsize=(3 * len(found), 3), layout="constrained")
    figure.suptitle(title)
    for axes, each in zip(panels, found, strict=True):
        axes.loglog([*each.seconds], [*each.seconds.values()], marker="o")
        axes.set(title=f"{each.what}\n{each.of}^{each.exponent:.2f}", xlabel=each.of, ylabel="seconds")
        axes.set_xticks([*each.seconds], [f"{size:,}" for size in each.seconds], rotation=45)
        ends = min(each.seconds.values()), max(each.seconds.values())
        axes.set_yticks(ends, [f"{seconds:.2g}" for seconds in ends])
        axes.minorticks_off()
    figure.savefig(to, metadata={"Date": None})


def main(folder: str) -> None:
    arithmetic.make_exact()
    device, found = devices.choose("auto"), list[Growth]()
    title = f"{devices.name(device)}, torch {torch.__version__}"
    for each in measured(device):
        print(each, flush=True)
        found.append(each)
    Path(folder).mkdir(parents=True, exist_ok=True)
    text = "\n".join([f"python -m bench.growth; {title}", *map(str, found)])
    (Path(folder) / "costs.txt").write_text(f"{text}\n")
    draw(found, title, Path(folder) / "costs.svg")


if __name__ == "__main__":
    main(sys.argv[1])
