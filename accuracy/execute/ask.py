"""Which dtypes does a user's function take? It is called once in each before the questions of a diagnosis are chosen.

Kernels mostly take 16 bits alone. The further grids of experiment=diagnose are in float32 and float64, where a fault
shows best; a function that refuses these would be asked a quarter of the questions. So its further grids get the dtypes
that it takes. The main grid keeps all four: what it refuses is a row with its own words.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from accuracy.config.read import Configuration
from accuracy.config.resolve import EVERYWHERE
from accuracy.core.case import Part, Problem
from accuracy.execute import run
from accuracy.execute.folder import opened
from accuracy.execute.plan import plan
from accuracy.results import table
from accuracy.results.table import OK

SEQLEN, HEADS, HEAD_DIM = 128, 2, 64
"""A shape that kernels with a least tile take, too."""
SECONDS = 60.0


def with_dtypes_taken(configuration: Configuration, config: Mapping[str, Any]) -> Configuration:
    """Return the configuration whose further grids have dtypes that its functions take, where nobody gave any.

    config: the composed configuration, which a run records. Nothing is asked where the grids are what their author
    wrote, or where a variant is none of a user's functions. With float32 taken, a further grid keeps those of its
    dtypes that are; else it gets all that are: one dtype alone has none beside it that tells rounding from a fault.
    """
    functions = all(dict(each.options).get("fn") for each in configuration.variants)
    asked = functions and configuration.given_keys == EVERYWHERE and "dtype" not in configuration.given
    if not (asked and configuration.also and configuration.variants) or configuration.paths_a:
        return configuration
    taken = _taken(configuration, config)
    if not taken or len(taken) == len(configuration.dtypes):
        return configuration
    also = (replace(grid, dtypes=_of_grid(grid, taken)) for grid in configuration.also)
    return replace(configuration, also=tuple(also))


def _of_grid(grid: Configuration, taken: tuple[str, ...]) -> tuple[str, ...]:
    if "float32" not in taken:
        return taken
    return tuple(each for each in grid.dtypes if each in taken) or ("float32",)


def _taken(configuration: Configuration, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the dtypes, among the configuration's, in which every function gave numbers for one tiny case."""
    main, given = configuration.problems[0], configuration.given
    size = 1 if 1 in configuration.world_sizes else min(configuration.world_sizes)
    tiny = configuration
    if not any(each.startswith("problem") or each == "variant.sharding" for each in given):
        problem = Problem(1, SEQLEN, HEADS, HEADS, HEAD_DIM, main.mask, HEAD_DIM**-0.5)
        tiny = replace(configuration, problems=(problem,))
    tiny = replace(
        tiny, also=(), seeds=configuration.seeds[:1], world_sizes=(size,), observers=(), report=False, paths_b=(),
        inputs=(Part("gaussian", "accuracy.inputs.distributions:gaussian", (("std", 1.0),)),), unusable="record",
        case_seconds=min(SECONDS, configuration.case_seconds), problems=tiny.problems[:1],
    )  # fmt: skip
    with TemporaryDirectory(prefix="accuracy-") as folder:
        plans = plan(tiny, None, size)
        with opened(Path(folder), configuration.device):
            outcome = run.execute(tiny, config, plans, Path(folder), ["(asked)"], quiet=True)
        if outcome.interrupted:
            raise KeyboardInterrupt
        rows = table.read_results(Path(folder)).drop_duplicates("case_id")
    measured, refused = ({*rows.loc[rows["status"].eq(OK) == good, "dtype"]} for good in (True, False))
    return tuple(each for each in configuration.dtypes if each in measured - refused)
