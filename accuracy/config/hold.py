"""What a user gave holds in every grid of a run: a further grid (`also`) does not leave the dtype, the mask, the
lengths or the ranks that somebody asked for.

In: a composed configuration and the keys that its user gave, as the command line names them (`dtype`, `problem.mask`).
Out: the same configuration without what its further grids say of these keys. Only where `given=everywhere`, as in
experiment=diagnose, whose further grids are there to find faults; elsewhere a further grid is what its author wrote.
"""

from collections.abc import Collection, Mapping
from typing import Any

from accuracy.config.checks import values_of
from accuracy.core.sharding import lengths_of

EVERYWHERE = "everywhere"
HEADS, LENGTHS = ("heads", "heads_kv"), ("seqlen", "seqlen_q", "documents")
"""Keys of a problem that belong together: who gives one of them has chosen the others' defaults, too."""
MOST_PAIRS_AGAIN = 2**28
"""Products of a query and a key of all runs again of a case together: seconds on a processor."""


def held(config: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Return the configuration with `given` in force in every grid. A sharding by lengths gives the length of the
    sequence and the number of ranks, where nobody gave these."""
    config, given = _with_lengths(config, {*given})
    config["given"] = sorted(given)
    if config.get("given_keys") != EVERYWHERE or not isinstance(config.get("also"), Mapping):
        return config
    return {**config, "also": {name: _held(grid, config, given) for name, grid in config["also"].items()}}


def _with_lengths(config: Mapping[str, Any], given: set[str]) -> tuple[dict[str, Any], set[str]]:
    """Fill in what a sharding as 40+20+36 says of the length and of the ranks."""
    found = {**config}
    for node in (config.get("variant") or {}).values():
        lengths = lengths_of(str(node.get("sharding"))) if isinstance(node, Mapping) else ()
        if not lengths or "variant.sharding" not in given:
            continue
        if not {"problem.seqlen", "problem.documents", "problem"} & given:
            found["problem"] = {**found["problem"], "seqlen": sum(lengths)}
        if "world_size" not in given:
            found["world_size"] = len(lengths)
        given = given | {"problem.seqlen", "world_size"}
    return found, given


def _held(grid: Any, config: Mapping[str, Any], given: set[str]) -> Any:
    """Return a further grid without the keys that are given."""
    if not isinstance(grid, Mapping):
        return grid
    kept = {key: value for key, value in grid.items() if key not in given}
    if not isinstance(grid.get("problem"), Mapping):
        return kept
    own = {key.removeprefix("problem.") for key in given if key.startswith("problem.")}
    own |= {key for together in (HEADS, LENGTHS) if own & {*together} for key in together}
    main = config["problem"]
    problem = {key: value for key, value in grid["problem"].items() if key not in own}
    if "problem.seqlen" in given:
        problem |= _rescaled(grid["problem"], main, given)
    kept["problem"] = problem
    if kept.get("reruns", {}).get("repeat"):
        most = max(1, MOST_PAIRS_AGAIN // _pairs({**main, **problem}))
        kept["reruns"] = {**kept["reruns"], "repeat": min(kept["reruns"]["repeat"], most)}
    return kept


def _rescaled(problem: Mapping[str, Any], main: Mapping[str, Any], given: set[str]) -> dict[str, Any]:
    """Return a grid's documents and queries as the same shares of the length that was given, if it is one length."""
    before, length = problem.get("seqlen"), main["seqlen"]
    if not (type(before) is int and type(length) is int):
        return {}
    found: dict[str, Any] = {}
    if problem.get("seqlen_q") and "problem.seqlen_q" not in given:
        found["seqlen_q"] = max(1, problem["seqlen_q"] * length // before)
    if problem.get("documents") and "problem.documents" not in given:
        first, *_, last = (max(1, int(each) * length // before) for each in problem["documents"].split("+"))
        if (middle := length - first - last) > 0:
            found["documents"] = f"{first}+{middle}+{last}"
    return found


def _pairs(problem: Mapping[str, Any]) -> int:
    """Return how many products of a query and a key the largest problem of a grid has."""
    batch, heads, length = (
        max((value for value in values_of(problem[key]) if type(value) is int and value > 0), default=1)
        for key in ("batch", "heads", "seqlen")
    )
    return batch * heads * length**2
