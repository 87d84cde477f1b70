"""From the composed configuration to typed axes: every key known, every value of its type, one line otherwise.

In: the resolved Hydra configuration as plain dicts and lists. Out: `Configuration`, in which every axis is a tuple
of its values. A knob that was given one value is an axis of one.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist

from accuracy import device as devices
from accuracy import knobs, parts
from accuracy.case import Part, Reruns, Scalar, Variant
from accuracy.depth.stack import Stack, stacks_of
from accuracy.dtype import FORMATS
from accuracy.errors import ConfigError, unknown
from accuracy.precision import CHOICES
from accuracy.reference.choice import METHODS
from accuracy.sharding import SHARDINGS

PACKAGE = Path(__file__).parent
MASKS = ("causal", "causal_top_left", "full")
WORLDS = ("simulated", "processes")
PROBLEM_KEYS = (
    "batch", "seqlen", "seqlen_q", "heads", "heads_kv", "head_dim", "mask", "window", "documents", "softmax_scale",
    "softcap",
)  # fmt: skip
OPTIONAL_PROBLEM_KEYS = ("seqlen_q", "window", "documents", "softcap")
SCHEDULE = ("SHARDINGS", "PRECISION", "FORWARD_PLACES", "BACKWARD_PLACES", "decline", "forward", "backward")
CONTENTS = {"kernel": ("abilities", "build"), "inputs": ("draw",)}  # what the module of a part must have
KEYS = (
    "name", "variant", "kernel", "precision", "inputs", "problem", "world", "dtype", "world_size", "seed",
    "device", "workers", "reruns", "conditions", "stack", "also", "unusable",
    "truth", "output_dir", "report", "dry_run",
)  # fmt: skip
ALSO_KEYS = ("variant", "kernel", "precision", "inputs", "problem", "dtype", "world_size", "seed", "reruns", "stack")


@dataclass(frozen=True)
class Configuration:
    """A run: its axes, each a tuple, and where it goes."""

    name: str
    variants: tuple[Variant, ...]
    kernels: tuple[Part, ...]
    precisions: tuple[dict[str, str], ...]  # overrides of the schedules' published policies
    inputs: tuple[Part, ...]
    problems: tuple[dict[str, Any], ...]  # raw fields; the grid checks and resolves them
    dtypes: tuple[str, ...]
    world: str
    backend: str  # of torch.distributed: gloo or nccl; "" in a simulated world
    case_seconds: float  # how long real ranks may take for a case
    world_sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    device: str
    workers: int  # processes that measure cases side by side, each on a GPU of its own
    reruns: Reruns
    conditions: bool
    stacks: tuple[Stack, ...]  # what attention is part of; none: it stands alone
    also: tuple["Configuration", ...]  # more grids, each the configuration with some keys changed
    record_unusable: bool  # a value that no case can use: rows that say why, instead of a mistake
    truth_folder: Path | None
    truth_min_seconds: float
    truth_method: str
    output_dir: Path | None
    report: bool
    dry_run: bool


def read(config: Mapping[str, Any], folders: Sequence[Path] = ()) -> Configuration:
    """Check and type a composed configuration. folders: where users keep parts of their own.

    Raises ConfigError.
    """
    knobs.exact_keys("configuration key", config, KEYS)
    truth = config["truth"]
    knobs.exact_keys("truth key", truth, ("folder", "min_seconds", "method"))
    problem = config["problem"]
    if isinstance(problem, Mapping):
        problem = {**dict.fromkeys(OPTIONAL_PROBLEM_KEYS), **problem}  # a problem of a user's own need not say them
    knobs.exact_keys("problem key", problem, PROBLEM_KEYS)
    device = devices.choose(knobs.choice("device", config["device"], devices.DEVICES))
    return Configuration(
        name=knobs.word("name", config["name"]),
        variants=tuple(_variants(config["variant"], folders)),
        kernels=tuple(_parts("kernel", config["kernel"], folders)),
        precisions=tuple(_precisions(config["precision"])),
        inputs=tuple(_parts("inputs", config["inputs"], folders)),
        problems=tuple(knobs.product({key: knobs.axis(f"problem.{key}", problem[key]) for key in PROBLEM_KEYS})),
        dtypes=knobs.choices("dtype", config["dtype"], FORMATS),
        world=knobs.choice("world", list(config["world"]), WORLDS),
        backend=_backend(config["world"], device),
        case_seconds=_case_seconds(config["world"]),
        world_sizes=knobs.integers("world_size", config["world_size"], 1),
        seeds=knobs.integers("seed", config["seed"], 0),
        device=device,
        workers=_workers(config, device),
        reruns=_reruns(config["reruns"]),
        conditions=knobs.typed("conditions", config["conditions"], bool),
        stacks=stacks_of(config["stack"]),
        also=tuple(_also(config, folders)),
        record_unusable=_record_unusable(config),
        truth_folder=knobs.path("truth.folder", truth["folder"]),
        truth_min_seconds=knobs.typed("truth.min_seconds", truth["min_seconds"], float),
        truth_method=knobs.choice("truth.method", truth["method"], METHODS),
        output_dir=knobs.path("output_dir", config["output_dir"]),
        report=knobs.typed("report", config["report"], bool),
        dry_run=knobs.typed("dry_run", config["dry_run"], bool),
    )


def _reruns(node: Any) -> Reruns:
    knobs.exact_keys("knob of reruns", node, names := [field.name for field in fields(Reruns)])
    flags = {name: knobs.typed(f"reruns.{name}", node[name], bool) for name in names if name != "repeat"}
    (repeat,) = knobs.integers("reruns.repeat", [node["repeat"]], 0)
    return Reruns(repeat=repeat, **flags)


def _also(config: Mapping[str, Any], folders: Sequence[Path]) -> Iterable[Configuration]:
    """The further grids, by name: a key given anew replaces the configuration's; problem, reruns and stack merge."""
    grids = {} if config["also"] is None else config["also"]
    if not isinstance(grids, Mapping):
        raise ConfigError(f"also={grids!r}; allowed: null, or grids by name, each a mapping of keys to change")
    for name, changes in grids.items():
        knobs.known_keys(f"key of also.{name}", changes, ALSO_KEYS)
        merged = {
            key: {**config[key], **value} if key in ("problem", "reruns", "precision", "stack") else value
            for key, value in changes.items()
        }
        yield read({**config, **merged, "also": {}}, folders)


def _record_unusable(config: Mapping[str, Any]) -> bool:
    """Asked for, or what `kernel=every` means: a kernel that nobody named is nobody's mistake."""
    return knobs.choice("unusable", config["unusable"], ("stop", "record")) == "record" or "every" in config["kernel"]


def _variants(nodes: Mapping[str, Any], folders: Sequence[Path]) -> Iterable[Variant]:
    for name, node in nodes.items():
        if isinstance(node, str):
            continue  # a shorthand that a variant's YAML refers to: variant.fn is variant.callable.fn
        missing = {"forward", "backward", "sharding"} - set(node if isinstance(node, Mapping) else ())
        if missing:
            raise ConfigError(f"variant.{name} lacks {', '.join(sorted(missing))}; see configs/variant/ring.yaml")
        schedules = {way: _part("variant", node[way], folders) for way in ("forward", "backward")}
        modules = [_module("schedule", part, SCHEDULE) for part in schedules.values()]
        sharding = knobs.choice(f"variant.{name}.sharding", node["sharding"], SHARDINGS)
        for part, module in zip(schedules.values(), modules, strict=True):
            if sharding not in module.SHARDINGS:
                allowed = ", ".join(module.SHARDINGS)
                raise ConfigError(
                    f"variant.{name}.sharding={sharding}, but schedule {part.name} is made for {allowed}; use that"
                )
        given = {key: value for key, value in node.items() if key not in ("forward", "backward", "sharding")}
        for options in _options(f"variant.{name}", given, modules):
            yield Variant(name, sharding, **schedules, options=options)


def _parts(kind: str, nodes: Mapping[str, Any], folders: Sequence[Path]) -> Iterable[Part]:
    for name, given in nodes.items():
        if kind == "kernel" and name == "auto":
            knobs.exact_keys("knob of kernel.auto", given, ("candidates",))
            candidates = knobs.axis("kernel.auto.candidates", given["candidates"])
            yield Part("auto", ",".join(_part(kind, candidate, folders).source for candidate in candidates))
            continue
        if kind == "kernel" and name == "every":
            yield from _every_kernel(given, folders)
            continue
        part = _part(kind, name, folders)
        for options in _options(f"{kind}.{name}", given or {}, [_module(kind, part, CONTENTS[kind])]):
            yield Part(name, part.source, options)


def _every_kernel(given: Mapping[str, Any], folders: Sequence[Path]) -> Iterable[Part]:
    """Every kernel on disk at its defaults, but those that are excluded."""
    knobs.exact_keys("knob of kernel.every", given, ("exclude",))
    names = sorted({path.stem for path in _files("kernel", folders)})
    excluded = given["exclude"] and knobs.choices("kernel.every.exclude", given["exclude"], names)
    for name in names:
        if name not in (excluded or ()):
            part = _part("kernel", name, folders)
            yield Part(name, part.source, parts.default_options(_module("kernel", part, CONTENTS["kernel"])))


def _part(kind: str, name: Any, folders: Sequence[Path]) -> Part:
    """Find a part's code: in the package, in a user's folder, or by the dotted name that was given."""
    name = str(name)
    if "." in name:
        return Part(name.rpartition(".")[2], name)
    if (PACKAGE / kind / f"{name}.py").exists():
        return Part(name, f"accuracy.{kind}.{name}")
    for folder in folders:
        path = folder / kind / f"{name}.py"
        if path.exists():
            return Part(name, str(path.resolve()))
    raise unknown(f"code of {kind}", name, [path.stem for path in _files(kind, folders)])


def _files(kind: str, folders: Sequence[Path]) -> list[Path]:
    """The Python files of a kind's parts, the package's first."""
    found = [path for place in (PACKAGE, *folders) for path in sorted((place / kind).glob("[a-z]*.py"))]
    return [path for path in found if path.stem != "base"]


def _module(kind: str, part: Part, contents: Iterable[str]) -> ModuleType:
    """A part's code, which someone else may have written: it loads, and has what its kind must have."""
    try:
        module = parts.load(part.source)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"{kind} {part.source} cannot be loaded ({text}); correct it, its name or PYTHONPATH"
        ) from error
    lacking = [name for name in contents if not hasattr(module, name)]
    if lacking:
        raise ConfigError(f"{kind} {part.source} lacks {', '.join(lacking)}; required: {', '.join(contents)}")
    return module


def _options(where: str, given: Mapping[str, Any], modules: Sequence[ModuleType]) -> Iterable[tuple[Any, ...]]:
    """Every combination of a part's knobs, defaults filled in, sorted by name."""
    declared = {field.name: field for module in modules for field in fields(getattr(module, "Options", _NoOptions))}
    knobs.known_keys(f"knob of {where}", given, declared)
    axes: dict[str, tuple[Scalar, ...]] = {}
    for name, field in sorted(declared.items()):
        values = knobs.axis(f"{where}.{name}", given[name]) if name in given else (field.default,)
        axes[name] = tuple(
            knobs.typed(f"{where}.{name}", each, _type_of(field.type), knobs.LIST_TOO) for each in values
        )
    combinations = [tuple(choice.items()) for choice in knobs.product(axes)]
    for module, options in itertools.product(modules, combinations):
        try:
            parts.build_options(module, options)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
    return combinations


@dataclass(frozen=True)
class _NoOptions:
    pass


def _type_of(annotation: Any) -> type:
    return {"int": int, "float": float, "bool": bool, "str": str}.get(str(annotation), annotation)


def _backend(node: Mapping[str, Any], device: str) -> str:
    """What carries tensors between real ranks: `auto` is gloo on CPUs and nccl on GPUs, and nothing else serves."""
    if "processes" not in node:
        return ""
    knobs.exact_keys("knob of world.processes", node["processes"], ("backend", "timeout_seconds"))
    word = knobs.choice("world.processes.backend", node["processes"]["backend"], ("auto", "gloo", "nccl"))
    fitting = "nccl" if device == "cuda" else "gloo"
    if word not in ("auto", fitting):
        raise ConfigError(f"world.processes.backend={word} carries no tensors of device={device}; use {fitting}")
    if not getattr(dist, f"is_{fitting}_available")():
        raise ConfigError(f"world=processes needs {fitting}, which this torch was built without; use world=simulated")
    return fitting


def _case_seconds(node: Mapping[str, Any]) -> float:
    """The time limit of a world of real ranks; none in a simulated one."""
    if "processes" not in node:
        return math.inf
    seconds: float = knobs.typed("world.processes.timeout_seconds", node["processes"]["timeout_seconds"], float)
    if not seconds > 0:
        raise ConfigError(f"world.processes.timeout_seconds={seconds}; allowed: a number above 0")
    return seconds


def _workers(config: Mapping[str, Any], device: str) -> int:
    """How many processes measure side by side: `auto` is one for each GPU where a simulated world lives on one."""
    given = config["workers"]
    if given != "auto" and (not isinstance(given, int) or given < 1 or given is True):
        raise ConfigError(f"workers={given!r}; allowed: a whole number from 1, or auto")
    if "processes" in config["world"]:
        if given not in ("auto", 1):
            raise ConfigError(
                f"workers={given}, but world=processes takes the GPUs for the ranks of one case;"
                " use workers=auto or world=simulated"
            )
        return 1
    gpus = len(devices.alike()) if device == "cuda" else None
    if given == "auto":
        return gpus or 1
    if gpus is not None and given > gpus:
        raise ConfigError(f"workers={given}, but each needs a GPU and {gpus} of one model are here; use workers=auto")
    return int(given)


def _precisions(node: Mapping[str, Any]) -> Iterable[dict[str, str]]:
    knobs.known_keys("precision knob", node, CHOICES)
    axes = {}
    for place, value in node.items():
        if value is not None:
            axes[place] = knobs.choices(f"precision.{place}", value, CHOICES[place])
    return knobs.product(axes)
