"""Which configuration does Hydra compose for a command, and what does it mean once it is known what its user gave,
which of its variants are functions, and what a live model's inputs say of themselves?

In: a composed configuration, and the keys that its user gave, as the command line names them (`dtype`,
`problem.mask`). Out: the same as plain dicts, for `accuracy.config.read`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf

from accuracy.config.checks import values_of
from accuracy.config.find import is_shorthand
from accuracy.config.paths import needs_processes
from accuracy.core.errors import ConfigError, unknown
from accuracy.core.paths import CONFIGS
from accuracy.core.recording import Recorded, choose, is_capture, recorded
from accuracy.core.sharding import lengths_of

EVERYWHERE = "everywhere"
"""`given_keys` of a configuration whose further grids are there to find faults, as those of experiment=diagnose: what
a user gave holds in them, too. Elsewhere a further grid is what its author wrote."""
HEADS, LENGTHS = ("heads", "heads_kv"), ("seqlen", "seqlen_q", "documents")
"""Keys of a problem that belong together: who gives one of them has chosen the others' defaults, too."""
MOST_PAIRS_AGAIN = 2**28
"""Products of a query and a key of all runs again of a case together: seconds on a processor."""
FEW = 4
"""Ranks that a further grid may start as processes where the main grid has several; more only as the main grid has."""
OF_FUNCTIONS = [1, 2, 3, 4]
"""At so many ranks `diagnose` and `assert_accurate` measure a function for which nobody chose a number of ranks."""
SHIPPED, EVERY = "layer_0", "every"  # the default of inputs.captured.layer, in the shipped file; all layers of a folder

Config = dict[str, Any]


def keys_of(words: Collection[str]) -> set[str]:
    """Return the keys that overrides of the command line give."""
    return {word.partition("=")[0].lstrip("+") for word in words}


def resolved(config: Mapping[str, Any], given: Collection[str]) -> Config:
    """Return the configuration with `given` in force in every grid, and with functions, where nobody chose a world, in
    a world of processes."""
    found = with_given(config, {*given})
    return found if "world" in given else in_worlds(found)


def replayed(config: Mapping[str, Any], given: Collection[str]) -> Config:
    """Return the configuration with the problem and the dtype of the capture that inputs.captured.path names, but for
    what is given. Raises ConfigError."""
    node = config.get("inputs")
    captured = node.get("captured") if isinstance(node, Mapping) else None
    path = captured.get("path") if isinstance(captured, Mapping) else None
    if node is None or captured is None or not isinstance(path, str) or not is_capture(Path(path).expanduser()):
        return dict(config)
    folder, layer = Path(path).expanduser(), captured.get("layer", SHIPPED)
    layers = [layer] if isinstance(layer, str) else layer
    calls = recorded(folder) if layer == EVERY else [_call(folder, each) for each in layers if each != EVERY]
    first = calls[0]
    for call in calls:
        if call.problem != first.problem:
            raise ConfigError(
                f"inputs.captured.layer={layer}: {call.first.name} is another problem than {first.first.name};"
                " choose calls of equal shapes and masks"
            )
    names = [call.first.name for call in calls]
    changed: Config = {"inputs": {**node, "captured": {**captured, "layer": names if len(names) > 1 else names[0]}}}
    if "problem" not in given:
        own = {key: value for key, value in first.problem.items() if f"problem.{key}" not in given}
        changed["problem"] = {**config["problem"], **own}
    if "dtype" not in given:
        changed["dtype"] = first.first.dtype
    return {**config, **changed}


def _call(folder: Path, layer: str) -> Recorded:
    """Return the call that a layer's name names; of a folder in which nobody chose one, the first. Raises
    ConfigError."""
    calls = recorded(folder)
    unnamed = layer == SHIPPED and not any(call.first.layer == SHIPPED for call in calls)
    return calls[0] if unnamed else choose(folder, layer)


def with_given(config: Mapping[str, Any], given: set[str]) -> Config:
    """Return the configuration with `given` in force in every grid. A sharding by lengths, as 40+20+36, gives the
    length of the sequence and the number of ranks, where nobody gave these."""
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
    found["given"] = sorted(given)
    main = found.get("problem") or {}
    if found.get("given_keys") == EVERYWHERE and isinstance(found.get("also"), Mapping):
        most = _most(found.get("world_size", 1)) if "world_size" in given else 1
        is_alone = "world_size" in given and most == 1
        grids = {name: grid for name, grid in found["also"].items() if not (is_alone and _is_of_several(grid))}
        found["also"] = {name: _grid_with(grid, main, given, most) for name, grid in grids.items()}
    return found


def _grid_with(grid: Any, main: Mapping[str, Any], given: set[str], ranks: int) -> Any:
    """Return a further grid without the keys that are given. main: the main grid's problem; ranks: the most that are
    given. Runs again of more ranks than the grid's own are fewer: it is the calls of ranks that show a race."""
    if not isinstance(grid, Mapping):
        return grid
    left = {key: value for key, value in grid.items() if key not in given}
    if not isinstance(grid.get("problem"), Mapping):
        return left
    own = {key.removeprefix("problem.") for key in given if key.startswith("problem.")}
    own |= {key for together in (HEADS, LENGTHS) if own & {*together} for key in together}
    problem = {key: value for key, value in grid["problem"].items() if key not in own}
    if "problem.seqlen" in given:
        problem |= _rescaled(grid["problem"], main.get("seqlen"), given)
    left["problem"] = problem
    if repeat := left.get("reruns", {}).get("repeat"):
        batch, heads, length = (_most({**main, **problem}.get(key)) for key in ("batch", "heads", "seqlen"))
        most = max(1, MOST_PAIRS_AGAIN // (batch * heads * length**2))
        repeat = math.ceil(repeat * min(1.0, _most(grid.get("world_size", ranks)) / ranks))
        left["reruns"] = {**left["reruns"], "repeat": min(repeat, most)}
    return left


def _is_of_several(grid: Any) -> bool:
    """Return whether a further grid is about several ranks alone: one that runs cases again tells of one, too."""
    sizes = grid.get("world_size", 1) if isinstance(grid, Mapping) else 1
    return 1 not in values_of(sizes) and not (grid.get("reruns") or {}).get("repeat")


def _rescaled(problem: Mapping[str, Any], length: Any, given: set[str]) -> Config:
    """Return a grid's documents and queries as the same shares of the length that was given, if it is one length."""
    before = problem.get("seqlen")
    if not (type(before) is int and type(length) is int):
        return {}
    found: Config = {}
    if problem.get("seqlen_q") and "problem.seqlen_q" not in given:
        found["seqlen_q"] = max(1, problem["seqlen_q"] * length // before)
    if problem.get("documents") and "problem.documents" not in given:
        first, *_, last = (max(1, int(each) * length // before) for each in problem["documents"].split("+"))
        if (middle := length - first - last) > 0:
            found["documents"] = f"{first}+{middle}+{last}"
    return found


def _most(values: Any) -> int:
    each = values if isinstance(values, list) else [values]
    return max((value for value in each if type(value) is int and value > 0), default=1)


def in_worlds(config: Config) -> Config:
    """Return a configuration with a simulated world with its functions in a world of processes, without the traces that
    only a simulated world has, and with further grids on few ranks; the other variants stay simulated, in grids of
    their own."""
    variants = config.get("variant")
    variants = variants if isinstance(variants, Mapping) else {}
    functions = {
        name: node for name, node in variants.items() if isinstance(node, Mapping) and node.get("forward") == "callable"
    }
    on_paths = needs_processes(config.get("path_a"))
    if "simulated" not in (config.get("world") or {}) or not (functions or on_paths):
        return config
    found = {**config, "world": nodes("world", ["processes"]), "workers": 1}
    if on_paths:
        return found
    words = {name: node for name, node in variants.items() if is_shorthand(node)}
    others = {name: node for name, node in variants.items() if name not in {*functions, *words}}
    grids = dict(config.get("also") or {})
    sizes = config.get("world_size", 1)
    simulated = {"variant": others, "world": config["world"], "world_size": sizes}
    if (twice := config.get("given_keys") == EVERYWHERE) and "world_size" not in config.get("given", ()):
        sizes = OF_FUNCTIONS
    of_functions = {name: _of_functions(grid, _most(sizes), twice) for name, grid in grids.items()}
    also = {name: grid for name, grid in of_functions.items() if grid is not None}
    if others:
        also["simulated"] = simulated
        for name, grid in grids.items():
            ranks = grid.get("world_size", simulated["world_size"])
            also[f"simulated_{name}"] = {**grid, **simulated, "world_size": ranks}
    return {**found, "variant": {**words, **functions}, "also": also, "world_size": sizes}


def _of_functions(grid: Any, most: int, twice: bool) -> Any:
    """Return a further grid for functions, whose steps cannot be watched, with its own world sizes as far as functions
    get them; None where none is left. A function is called again and again on one rank, too. Fewer queries than keys
    are nothing that every function serves. twice: a case of another problem is run again, since one that is wrong by
    chance, as of a race, is no condition of a fault."""
    if not isinstance(grid, Mapping):
        return grid
    if isinstance(grid.get("problem"), Mapping) and grid["problem"].get("seqlen_q"):
        return None
    reruns = grid.get("reruns")
    found = {**grid, "reruns": {**reruns, "trace": False}} if isinstance(reruns, Mapping) else {**grid}
    if twice and "problem" in grid:
        found["reruns"] = {"repeat": 1, **found.get("reruns", {})}
    if "world_size" not in grid:
        return found
    again = bool((reruns or {}).get("repeat"))
    if most == 1:
        return None if _is_of_several(grid) else {**found, "world_size": 1}
    sizes = [1] if again else []  # it may be one of one device whatever its file imports
    sizes += [size for size in values_of(grid["world_size"]) if not isinstance(size, int) or size <= max(most, FEW)]
    return {**found, "world_size": sizes} if sizes else None


def compose(*overrides: str, folders: Sequence[Path] = ()) -> dict[str, Any]:
    """The resolved configuration of `accuracy OVERRIDES`; folders: with a user's own parts. Raises Hydra's errors."""
    return OmegaConf.to_container(loaded(*overrides, folders=folders), resolve=True)  # type: ignore[return-value]


def loaded(*overrides: str, folders: Sequence[Path] = ()) -> DictConfig:
    """The configuration of `accuracy OVERRIDES` as Hydra loads it: a key that refers to another one, as `${variant.fn}`
    does, has no value yet. Arguments and errors are those of `compose`."""
    search = [f"hydra.searchpath=[{','.join(f'file://{folder.resolve()}' for folder in folders)}]"] if folders else []
    callers, version, job = GlobalHydra.instance(), VersionBase.instance(), JobRuntime.instance()
    before = callers.hydra, version.version_base, job.get("name")  # a process has one of each
    callers.clear()
    try:
        with hydra.initialize_config_dir(str(CONFIGS.resolve()), version_base="1.3"):
            return hydra.compose("config", overrides=[*search, *overrides])
    finally:
        GlobalHydra.set_instance(callers)
        callers.hydra, version.version_base = before[:2]
        job.set("name", before[2])


def nodes(group: str, names: Sequence[str]) -> dict[str, Any]:
    """The group's nodes of these names, as the command line has them. Raises ConfigError for an unknown name."""
    allowed = sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
    for name in names:
        if name not in allowed:
            raise unknown(group, name, allowed)
    found: dict[str, Any] = _composed((f"{group}=[{','.join(names)}]",))[group]
    return deepcopy(found)


def composed(*words: str) -> Config:
    """As `compose`, of what the package ships; the same words are composed once in a process."""
    return deepcopy(_composed(words))


@cache  # Hydra takes a quarter of a second
def _composed(words: tuple[str, ...]) -> Config:
    return compose(*words)
