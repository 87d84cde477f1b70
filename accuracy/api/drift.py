"""`accuracy.drift`: two paths of the same attention on the same inputs, bit for bit, how far, and which is nearer.
`accuracy.invariance`: at which batch-mates, lengths, chunks, pages or splits one path's bits change.
`accuracy.attribute`: which of the places in which two paths differ make their results differ."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from typing_extensions import Unpack

from accuracy.api.measure import Run, execute
from accuracy.api.request import OF_FUNCTIONS, Dtypes, Problem, asked, check_of_no_function, named, request
from accuracy.core.errors import OF_PROBLEM, ConfigError, entry
from accuracy.paths.table import boundaries, pairs, places

Paths = str | Callable[..., Any] | Iterable[str | Callable[..., Any]]


@entry(OF_PROBLEM)
def drift(
    a: Paths, b: Paths, *, dtype: Dtypes = "bfloat16", world_size: int = 1, seed: Any = 0, inputs: Any = "gaussian",
    kernel: Any = "auto", sharding: str = "contiguous", layout: str = "bshd", device: str = "auto",
    output_dir: str | Path | None = None, case_seconds: float | None = None, progress: bool = True,
    **problem: Unpack[Problem],
) -> pd.DataFrame:  # fmt: skip
    """Run both paths on the same inputs and compare out, lse, dq, dk and dv, as far as both have them.

    a, b: a path or a list of them, of which every pair is compared. A path is `NAME[/KEY:VALUE...][@W][+KERNEL]`: a
    variant with its knobs and rounding places on W ranks (`"te_p2p@8"`, `"split_kv/splits:4+eager"`,
    `"ring/partial:accumulate@8"`), a kernel's name (run once on one device), or a function as `accuracy.measure` takes
    it. world_size, kernel: of what does not say its own; of a, functions may have several ranks, of b one. sharding,
    layout: of functions. All else as in `accuracy.measure`.

    `beyond` is a fact, no bug by itself: a path that keeps its scores in 16 bits is further away, too.

    Returns one row per pair, tensor and rank of a (-1: all): `path_a`, `path_b`; `label`: `equal` (to the last bit),
    `within` (what two healthy roundings give) or `beyond`; `nearer`: `a`, `b` or `neither`, by errors from the float64
    reference paired over rows; `drift_*`, of which `accuracy.columns()` says what they are; `error_a`, `error_b`,
    relative errors. With output_dir the folder's `positions/` has the difference along the tokens. A pair that cannot
    run is a row with the status and the reason. Raises ConfigError, a ValueError, in one line.
    """
    return pairs(_run(locals(), a, b).results)


@entry(OF_PROBLEM)
def attribute(
    a: str, b: str, *, dtype: Dtypes = "bfloat16", world_size: int = 1, seed: Any = 0, inputs: Any = "gaussian",
    kernel: Any = "auto", device: str = "auto", output_dir: str | Path | None = None, progress: bool = True,
    **problem: Unpack[Problem],
) -> pd.DataFrame:  # fmt: skip
    """Which of the places in which two paths differ make their results differ, and what makes a equal b bit for bit?

    a, b: as in `drift`, but for functions, which have no places. The places (the schedule, the kernel, each knob, each
    place of the precision policy) are switched from a's to b's in all combinations, of up to 8: at most 256 runs.

    Returns a row for each tensor that differs and place, see `accuracy.paths.table.places`; none where no bit
    differs. Raises ConfigError, a ValueError, in one line.
    """
    for side in (a, b):
        if callable(side):
            raise ConfigError(f"{getattr(side, '__name__', side)} is a function, which has no places; give two paths")
    run = _run(locals(), a, b, reruns={"places": True})
    return places(run.places, run.results)


@entry(OF_PROBLEM)
def invariance(
    path: Paths, *, batchmates: int = 0, order: int = 0, length: int = 0, queries: int = 0, chunk: int = 0,
    pages: int = 0, splits: int = 0, dtype: Dtypes = "bfloat16", world_size: int = 1, seed: Any = 0,
    inputs: Any = "gaussian", kernel: Any = "auto", sharding: str = "contiguous", layout: str = "bshd",
    device: str = "auto", output_dir: str | Path | None = None, progress: bool = True,
    **problem: Unpack[Problem],
) -> pd.DataFrame:  # fmt: skip
    """At which values do a path's bits change, where only what is none of its rows' business does?

    path: as in `drift`, or a list. Each of the others is the largest value that is tried, 0: not varied; the rows of
    the first sequence are compared. batchmates: further sequences in the batch; order: the place of the sequence in a
    batch of so many others; length: tokens behind the sequence; queries: of the last query's kernel call; chunk:
    queries of a step of a prefill; pages: keys of a page of the cache, each a kernel call; splits: parts of the keys
    (the last three of a variant with such a knob; single_device gets a cache on the same kernel). Values at powers of
    two are run, and between two with other bits the first value that has them is found by bisection.

    Returns a row for each such value and tensor, see `accuracy.paths.table.boundaries`; a row without a value where
    there is none, with the reason where nothing could be varied. Raises ConfigError, a ValueError, in one line.
    """
    reruns = {
        "batchmates": batchmates, "order": order, "length": length, "queries": queries, "chunk": chunk, "pages": pages,
        "splits": splits,
    }  # fmt: skip
    if not any(reruns.values()):
        raise ConfigError(f"nothing is varied; give one of {', '.join(reruns)} as a number, batchmates=16")
    run = _run(locals(), path, reruns=reruns)
    return boundaries(run.boundaries, run.results)


def _run(call: Mapping[str, Any], *sides: Paths, reruns: Mapping[str, Any] | None = None) -> Run:
    """Measure single device with the paths of one side or of both beside it.

    Args:
        call: a public function's `locals()`.
        sides: a, or a and b. A function of b has one rank, whatever world_size is.
        reruns: changes of the configuration's node.
    """
    arguments = asked(call)
    node = {name: arguments.pop(name, default) for name, default in OF_FUNCTIONS.items()}
    found = [named(side) for side in sides]
    functions: dict[str, Callable[..., Any]] = {}
    for _, each in found:
        if clash := next((name for name in each if functions.get(name, each[name]) is not each[name]), None):
            raise ConfigError(f"two functions are called {clash}; give one another __name__")
        functions |= each
    if not functions:
        check_of_no_function(node)
    options = "".join(f"/{name}:{value}" for name, value in node.items() if value is not None)
    texts = [
        [*names, *(f"given:{name}{options}{ranks}" for name in each)]
        for (names, each), ranks in zip(found, ("", "@1"), strict=False)
    ]
    keys = dict(zip(("path_a", "path_b"), texts, strict=False)) | ({"unusable": "record"} if len(sides) == 2 else {})
    config = request("single_device", arguments, functions=functions, keys=keys)
    config["reruns"] |= reruns or {}
    return execute(config, call["output_dir"], progress=call["progress"])
