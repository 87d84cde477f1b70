"""From the composed configuration to typed axes: every key known, every value of its type, one line otherwise.

In: the resolved Hydra configuration as plain dicts and lists. Out: `Configuration`, in which every axis is a tuple
of its values. A knob that was given one value is an axis of one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from accuracy.config import checks
from accuracy.config.choices import parts_of, variants
from accuracy.config.stack import Stack, stacks_of
from accuracy.core.case import Part, Reruns, Variant
from accuracy.core.dtype import FORMATS
from accuracy.core.errors import ConfigError
from accuracy.core.precision import CHOICES
from accuracy.reference.choice import METHODS
from accuracy.runtime import device as devices

MASKS = ("causal", "causal_top_left", "full")
WORLDS = ("simulated", "processes")
PROBLEM_KEYS = (
    "batch", "seqlen", "seqlen_q", "heads", "heads_kv", "head_dim", "mask", "window", "documents", "softmax_scale",
    "softcap",
)  # fmt: skip
OPTIONAL_PROBLEM_KEYS = ("seqlen_q", "window", "documents", "softcap")
KEYS = (
    "name", "variant", "kernel", "precision", "inputs", "problem", "world", "dtype", "world_size", "seed",
    "device", "workers", "threads", "case_seconds", "reruns", "conditions", "stack", "also", "unusable",
    "reference", "output_dir", "report", "dry_run",
)  # fmt: skip
ALSO_KEYS = (
    "variant", "kernel", "precision", "inputs", "problem", "world", "dtype", "world_size", "seed", "reruns", "stack",
)  # fmt: skip


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
    batched: bool  # all simulated ranks in one kernel call where that changes no bit
    backend: str  # of torch.distributed: gloo or nccl; "" in a simulated world
    timeout_seconds: float  # how long real ranks may take for a case
    world_sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    device: str
    workers: int  # processes that measure cases side by side, at most
    threads: int  # of the processor, in each process of a run on a CPU
    case_seconds: float  # time limit of a case; infinite: none
    reruns: Reruns
    conditions: bool
    stacks: tuple[Stack, ...]  # what attention is part of; none: it stands alone
    also: tuple["Configuration", ...]  # more grids, each the configuration with some keys changed
    record_unusable: bool  # a value that no case can use: rows that say why, instead of a mistake
    reference_folder: Path | None
    reference_min_seconds: float
    reference_method: str
    output_dir: Path | None
    report: bool
    dry_run: bool


def read(config: Mapping[str, Any], folders: Sequence[Path] = ()) -> Configuration:
    """Check and type a composed configuration. folders: where users keep parts of their own.

    Raises ConfigError.
    """
    checks.exact_keys("configuration key", config, KEYS)
    reference = config["reference"]
    checks.exact_keys("reference key", reference, ("folder", "min_seconds", "method"))
    problem = config["problem"]
    if isinstance(problem, Mapping):
        problem = {**dict.fromkeys(OPTIONAL_PROBLEM_KEYS), **problem}  # a problem of a user's own need not say them
    checks.exact_keys("problem key", problem, PROBLEM_KEYS)
    device = devices.choose(checks.choice("device", config["device"], devices.DEVICES))
    threads = checks.integer("threads", config["threads"], 1)
    return Configuration(
        name=checks.word("name", config["name"]),
        variants=tuple(variants(config["variant"], folders)),
        kernels=tuple(parts_of("kernel", config["kernel"], folders)),
        precisions=tuple(_precisions(config["precision"])),
        inputs=tuple(parts_of("inputs", config["inputs"], folders)),
        problems=tuple(checks.product({key: checks.axis(f"problem.{key}", problem[key]) for key in PROBLEM_KEYS})),
        dtypes=checks.choices("dtype", config["dtype"], FORMATS),
        world=checks.choice("world", list(config["world"]), WORLDS),
        batched=_batched(config["world"]),
        backend=_backend(config["world"], device),
        timeout_seconds=_timeout_seconds(config["world"]),
        world_sizes=checks.integers("world_size", config["world_size"], 1),
        seeds=checks.integers("seed", config["seed"], 0),
        device=device,
        workers=_workers(config, device, threads),
        threads=threads,
        case_seconds=_seconds("case_seconds", config["case_seconds"], "null for no limit, or a number above 0"),
        reruns=_reruns(config["reruns"]),
        conditions=checks.typed("conditions", config["conditions"], bool),
        stacks=stacks_of(config["stack"]),
        also=tuple(_also(config, folders)),
        record_unusable=_record_unusable(config),
        reference_folder=checks.path("reference.folder", reference["folder"]),
        reference_min_seconds=checks.typed("reference.min_seconds", reference["min_seconds"], float),
        reference_method=checks.choice("reference.method", reference["method"], METHODS),
        output_dir=checks.path("output_dir", config["output_dir"]),
        report=checks.typed("report", config["report"], bool),
        dry_run=checks.typed("dry_run", config["dry_run"], bool),
    )


def _reruns(node: Any) -> Reruns:
    checks.exact_keys("knob of reruns", node, names := [field.name for field in fields(Reruns)])
    flags = {name: checks.typed(f"reruns.{name}", node[name], bool) for name in names if name != "repeat"}
    return Reruns(repeat=checks.integer("reruns.repeat", node["repeat"], 0), **flags)


def _also(config: Mapping[str, Any], folders: Sequence[Path]) -> Iterable[Configuration]:
    """The further grids, by name: a key given anew replaces the configuration's; problem, reruns and stack merge."""
    grids = {} if config["also"] is None else config["also"]
    if not isinstance(grids, Mapping):
        raise ConfigError(f"also={grids!r}; allowed: null, or grids by name, each a mapping of keys to change")
    for name, changes in grids.items():
        checks.known_keys(f"key of also.{name}", changes, ALSO_KEYS)
        if "world" in changes and (list(changes["world"]) != ["simulated"] or "simulated" in config["world"]):
            raise ConfigError(
                f"also.{name}.world={changes['world']}; allowed: {{simulated: {{}}}}, where the main grid has"
                " world=processes (a run starts its real ranks for that)"
            )
        merged = {
            key: {**config[key], **value} if key in ("problem", "reruns", "precision", "stack") else value
            for key, value in changes.items()
        }
        yield read({**config, **merged, "also": {}}, folders)


def _record_unusable(config: Mapping[str, Any]) -> bool:
    """Asked for, or what `kernel=every` means: a kernel that nobody named is nobody's mistake."""
    return checks.choice("unusable", config["unusable"], ("stop", "record")) == "record" or "every" in config["kernel"]


def _batched(node: Mapping[str, Any]) -> bool:
    given = node.get("simulated") or {}
    checks.known_keys("knob of world.simulated", given, ("batched",))
    batched: bool = checks.typed("world.simulated.batched", given.get("batched", True), bool)
    return batched


def _backend(node: Mapping[str, Any], device: str) -> str:
    """What carries tensors between real ranks: `auto` is gloo on CPUs and nccl on GPUs, and nothing else serves."""
    if "processes" not in node:
        return ""
    checks.exact_keys("knob of world.processes", node["processes"], ("backend", "timeout_seconds"))
    word = checks.choice("world.processes.backend", node["processes"]["backend"], ("auto", "gloo", "nccl"))
    fitting = "nccl" if device == "cuda" else "gloo"
    if word not in ("auto", fitting):
        raise ConfigError(f"world.processes.backend={word} carries no tensors of device={device}; use {fitting}")
    if not getattr(dist, f"is_{fitting}_available")():
        raise ConfigError(f"world=processes needs {fitting}, which this torch was built without; use world=simulated")
    return fitting


def _timeout_seconds(node: Mapping[str, Any]) -> float:
    """The time limit of a world of real ranks; none in a simulated one."""
    if "processes" not in node:
        return math.inf
    return _seconds("world.processes.timeout_seconds", node["processes"]["timeout_seconds"], "a number above 0")


def _seconds(where: str, value: Any, allowed: str) -> float:
    """A time limit; null, where that is allowed, is none."""
    if value is None and "null" in allowed:
        return math.inf
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"{where}={value!r}; allowed: {allowed}")
    return float(value)


def _workers(config: Mapping[str, Any], device: str, threads: int) -> int:
    """How many processes measure side by side, at most: where a simulated world lives in one process, `auto` is one for
    each GPU, or as many as share out the threads that torch would use by itself (`OMP_NUM_THREADS`)."""
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
        return gpus or max(1, torch.get_num_threads() // threads)
    if gpus is not None and given > gpus:
        raise ConfigError(f"workers={given}, but each needs a GPU and {gpus} of one model are here; use workers=auto")
    return int(given)


def _precisions(node: Mapping[str, Any]) -> Iterable[dict[str, str]]:
    checks.known_keys("precision knob", node, CHOICES)
    axes = {}
    for place, value in node.items():
        if value is not None:
            axes[place] = checks.choices(f"precision.{place}", value, CHOICES[place])
    return checks.product(axes)
