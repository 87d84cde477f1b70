"""From the composed configuration to typed axes: every key known, every value of its kind, one line otherwise.

In: plain dicts and lists. Out: `Configuration`, every axis a tuple of its values. No code of a part is loaded, and no
torch: what only the parts and the machine can tell, `accuracy.execute.settle` adds.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt
from pydantic import BeforeValidator, SkipValidation

from accuracy.config.checks import Axis, check, combinations, mapping, unknown_key
from accuracy.config.find import parts, variants
from accuracy.config.hold import EVERYWHERE
from accuracy.config.paths import NamedPath, named_paths
from accuracy.config.problem import problem_of
from accuracy.core.case import Part, Problem, Reruns, Stack, Variant
from accuracy.core.dtype import DTYPES
from accuracy.core.errors import ConfigError
from accuracy.core.kinds import FromZero, OneOf, Positive, Whole
from accuracy.core.paths import EXPERIMENTS
from accuracy.core.precision import Precision

DEVICES = ("auto", "cpu", "cuda")
ALSO_KEYS = (
    "variant", "kernel", "precision", "inputs", "problem", "world", "dtype", "world_size", "seed", "reruns", "stack",
    "path_a", "path_b",
)  # fmt: skip
AUTO_WORKERS, PROCESSORS = 0, -1
MOST_THREADS = 256  # on a machine with fewer processors, too: the same digits need as many


def _word(value: Any) -> Any:
    if not isinstance(value, str) or not value.replace("_", "").replace("-", "").isalnum():
        raise ValueError("allowed: letters, digits, - and _")
    return value


def _path(value: Any) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
        raise ValueError("allowed: one path, or null")
    if not str(value).isprintable():
        raise ValueError("allowed: a path without control characters, or null")
    return Path(str(value)).expanduser()


def _workers(value: Any) -> int:
    words = {"auto": AUTO_WORKERS, "processors": PROCESSORS}
    if isinstance(value, str) and value in words:
        return words[value]
    if type(value) is not int or not 1 <= value < 2**31:
        raise ValueError("allowed: a whole number from 1, auto, or processors")
    return value


def _limit(value: Any) -> Any:
    return math.inf if value is None else value


@dataclass(frozen=True)
class Configuration:
    """A run: its axes, each a tuple, and where it goes. Raises ConfigError for workers beside real ranks."""

    name: Annotated[str, BeforeValidator(_word)]
    variants: SkipValidation[tuple[Variant, ...]]
    kernels: SkipValidation[tuple[Part, ...]]
    precisions: SkipValidation[tuple[dict[str, str], ...]]  # overrides of the schedules' published policies
    inputs: SkipValidation[tuple[Part, ...]]
    problems: SkipValidation[tuple[Problem, ...]]
    dtypes: Axis[Annotated[str, OneOf(*DTYPES)]]
    world: Annotated[str, OneOf("simulated", "processes")]
    world_sizes: Axis[Whole]
    seeds: Axis[FromZero]
    device: Annotated[str, OneOf(*DEVICES)]
    workers: Annotated[int, BeforeValidator(_workers)]  # processes that measure cases side by side, at most
    threads: Whole  # of the processor, in each process of a run on a CPU
    case_seconds: Annotated[float, Gt(0), BeforeValidator(_limit)]  # time limit of a case; infinite: none
    reruns: SkipValidation[Reruns]
    conditions: bool
    stacks: SkipValidation[tuple[Stack, ...]]  # what attention is part of; none: it stands alone
    paths_a: SkipValidation[tuple[NamedPath, ...]]  # in place of variants, where there are any
    paths_b: SkipValidation[tuple[NamedPath, ...]]  # what each path is compared with, too
    also: SkipValidation[tuple["Configuration", ...]]  # more grids, each the configuration with some keys changed
    unusable: Annotated[str, OneOf("stop", "record")]  # a value that no case can use: a mistake, or rows that say why
    given_keys: Annotated[str, OneOf("main", "everywhere")]  # in which grids a key holds that a user gave
    reference_folder: Annotated[Path | None, BeforeValidator(_path)]
    reference_min_seconds: Annotated[float, Ge(0)]
    reference_method: Annotated[str, OneOf("auto", "fused", "torch")]
    output_dir: Annotated[Path | None, BeforeValidator(_path)]
    report: bool
    dry_run: bool
    given: SkipValidation[tuple[str, ...]] = ()  # the keys that a user gave, `problem.mask`
    batched: bool = True  # all simulated ranks in one kernel call where that changes no bit
    backend: Annotated[str, OneOf("auto", "gloo", "nccl")] = ""  # of torch.distributed; "" in a simulated world
    timeout_seconds: Positive = math.inf  # how long real ranks may take for a case

    KEYS: ClassVar = {  # of fields that are called otherwise in a configuration
        **{f"{key}s": key for key in (
            "variant", "kernel", "precision", "problem", "dtype", "world_size", "seed", "stack"
        )},
        **{f"reference_{key}": f"reference.{key}" for key in ("folder", "min_seconds", "method")},
        "batched": "world.simulated.batched", "backend": "world.processes.backend",
        "timeout_seconds": "world.processes.timeout_seconds", "paths_a": "path_a", "paths_b": "path_b",
    }  # fmt: skip

    def __post_init__(self) -> None:
        if self.threads > (most := max(MOST_THREADS, os.cpu_count() or 1)):
            raise ConfigError(f"threads={self.threads}; allowed: 1 to {most}: more only take memory")
        if self.world == "processes" and self.workers not in (AUTO_WORKERS, PROCESSORS, 1):
            raise ConfigError(
                f"workers={self.workers}, but world=processes takes the GPUs for the ranks of one case;"
                " use workers=auto or world=simulated"
            )


def read(config: Mapping[str, Any], folders: Sequence[Path] = ()) -> Configuration:
    """Check and type a composed configuration.

    Args:
        config: as Hydra composes it.
        folders: of users' own parts; an experiment's own folder counts as one, too.

    Raises:
        ConfigError: for a key that is unknown or a value that is not of its kind.
    """
    folders = [*folders, EXPERIMENTS / str(config.get("name"))]
    read_by = {
        "problem": lambda node: map(problem_of, combinations("problem", node)),
        "precision": _precisions,
        "stack": _stacks,
        "variant": lambda node: variants(node, folders),
        "kernel": lambda node: parts("kernel", node, folders),
        "inputs": lambda node: parts("inputs", node, folders),
        "path_a": lambda node: named_paths("path_a", node, folders),
        "path_b": lambda node: named_paths("path_b", node, folders),
    }
    built: dict[str, Any] = {key: tuple(make(config[key])) for key, make in read_by.items() if key in config}
    for key in ("variant", "kernel", "inputs"):
        if built.get(key) == ():
            raise ConfigError(f"{key}={config[key]} chooses nothing; give one (accuracy --help lists every choice)")
    built["given"] = tuple(config.get("given", ()))
    if "reruns" in config:
        built["reruns"] = check(Reruns, "reruns", config["reruns"])
    also = {"also": ()} if "also" in config else {}
    main = check(Configuration, "", {**_flat(config), **built, **also})
    if "every" in config["kernel"]:  # a kernel that nobody named is nobody's mistake
        main = replace(main, unusable="record")
    return replace(main, also=tuple(_also(config, folders)))


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the keys of `reference` and of the chosen world beside the others, by their paths."""
    flat = {key: value for key, value in config.items() if key not in ("reference", "world")}
    for key, value in mapping("reference", config.get("reference", {})).items():
        flat[f"reference.{key}"] = value
    for world, knobs in mapping("world", config.get("world", {})).items():
        flat["world"] = world if "world" not in flat else list(config["world"])
        flat |= {f"world.{world}.{key}": value for key, value in mapping(f"world.{world}", knobs).items()}
    return flat


def _also(config: Mapping[str, Any], folders: Sequence[Path]) -> Iterator[Configuration]:
    """The further grids, by name: a key given anew replaces the configuration's; problem, reruns and stack merge."""
    given = {} if config["also"] is None else config["also"]
    for name, changes in mapping("also", given).items():
        for key in mapping(f"also.{name}", changes):
            if key not in ALSO_KEYS:
                raise unknown_key(f"also.{name}.{key}", [f"also.{name}.{each}" for each in ALSO_KEYS])
        if "world" in changes and (list(changes["world"]) != ["simulated"] or "simulated" in config["world"]):
            raise ConfigError(
                f"also.{name}.world={changes['world']}; allowed: {{simulated: {{}}}}, where the main grid has"
                " world=processes (a run starts its real ranks for that)"
            )
        merged = {
            key: {**config[key], **value} if key in ("problem", "reruns", "precision", "stack") else value
            for key, value in changes.items()
        }
        try:
            yield read({**config, **merged, "also": {}}, folders)
        except ConfigError as error:
            if config.get("given_keys") == EVERYWHERE and any(key.startswith("problem.") for key in config["given"]):
                continue  # the grid asks for what the given problem cannot have
            raise ConfigError(f"also.{name}: {error}") from error


def _stacks(node: Any) -> tuple[Stack, ...]:
    """No stack where layers=0, but what is said of it must make sense there, too."""
    none = mapping("stack", node).get("layers") == 0
    given = {**node, "layers": 1} if none else node
    found = tuple(check(Stack, "stack", each) for each in combinations("stack", given))
    return () if none else found


def _precisions(node: Any) -> Iterable[dict[str, str]]:
    given = {place: value for place, value in mapping("precision", node).items() if value is not None}
    for overrides in combinations("precision", given):
        check(Precision, "precision", overrides)
        yield overrides
