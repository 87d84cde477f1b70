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

from annotated_types import Gt
from pydantic import BeforeValidator, SkipValidation

from accuracy.config.checks import Axis, check, combinations, mapping, unknown_key
from accuracy.config.find import OLD_KEYS, observers, parts, variants
from accuracy.config.paths import NamedPath, named_paths
from accuracy.config.resolve import EVERYWHERE
from accuracy.core.case import Part, Problem, Variant
from accuracy.core.dtype import ALIASES, DTYPES, FromZero, OneOf, Positive, Precision, Whole
from accuracy.core.errors import ConfigError
from accuracy.core.fields import default_softmax_scale
from accuracy.core.paths import EXPERIMENTS

DEVICES = ("auto", "cpu", "cuda")
ALSO_KEYS = (
    "variant", "kernel", "precision", "inputs", "problem", "world", "dtype", "world_size", "seed", "observers",
    "reruns", "path_a", "path_b",
)  # fmt: skip
AUTO_WORKERS, PROCESSORS = 0, -1
AUTO = "auto"
MOST_HEADS = 1024  # that an error lists divisors up to
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


def _share(value: Any) -> bool | None:
    if value != AUTO and not isinstance(value, bool):
        raise ValueError("allowed: true, false or auto")
    return None if value == AUTO else value


@dataclass(frozen=True)
class Configuration:
    """A run: its axes, each a tuple, and where it goes. Raises ConfigError for workers beside real ranks."""

    name: Annotated[str, BeforeValidator(_word)]
    variants: SkipValidation[tuple[Variant, ...]]
    kernels: SkipValidation[tuple[Part, ...]]
    precisions: SkipValidation[tuple[dict[str, str], ...]]  # overrides of the schedules' published policies
    inputs: SkipValidation[tuple[Part, ...]]
    problems: SkipValidation[tuple[Problem, ...]]
    dtypes: Axis[Annotated[str, OneOf(*DTYPES), BeforeValidator(lambda given: ALIASES.get(str(given), given))]]
    world: Annotated[str, OneOf("simulated", "processes")]
    world_sizes: Axis[Whole]
    seeds: Axis[FromZero]
    device: Annotated[str, OneOf(*DEVICES)]
    workers: Annotated[int, BeforeValidator(_workers)]  # processes that measure cases side by side, at most
    threads: Whole  # of the processor, in each process of a run on a CPU
    case_seconds: Annotated[
        float, Gt(0), BeforeValidator(lambda given: math.inf if given is None else given)
    ]  # time limit of a case; infinite: none
    observers: SkipValidation[tuple[Part, ...]]  # the questions asked of every case beside its errors
    paths_a: SkipValidation[tuple[NamedPath, ...]]  # in place of variants, where there are any
    paths_b: SkipValidation[tuple[NamedPath, ...]]  # what each path is compared with, too
    also: SkipValidation[tuple["Configuration", ...]]  # more grids, each the configuration with some keys changed
    unusable: Annotated[str, OneOf("stop", "record")]  # a value that no case can use: a mistake, or rows that say why
    given_keys: Annotated[str, OneOf("main", "everywhere")]  # in which grids a key holds that a user gave
    output_dir: Annotated[Path | None, BeforeValidator(_path)]
    report: bool
    dry_run: bool
    given: SkipValidation[tuple[str, ...]] = ()  # the keys that a user gave, `problem.mask`
    batched: bool = True  # on a GPU all simulated ranks in one kernel call where that changes no bit
    backend: Annotated[str, OneOf(AUTO, "gloo", "nccl")] = ""  # of torch.distributed; "" in a simulated world
    timeout_seconds: Positive = math.inf  # how long real ranks may take for a case
    share_gpu: Annotated[bool | None, BeforeValidator(_share)] = None  # several real ranks on one; None: where it must

    KEYS: ClassVar = {  # of fields that are called otherwise in a configuration
        **{f"{key}s": key for key in (
            "variant", "kernel", "precision", "problem", "dtype", "world_size", "seed"
        )},
        "batched": "world.simulated.batched", "backend": "world.processes.backend",
        **{key: f"world.processes.{key}" for key in ("timeout_seconds", "share_gpu")},
        "paths_a": "path_a", "paths_b": "path_b",
    }  # fmt: skip

    def __post_init__(self) -> None:
        if self.threads > (most := max(MOST_THREADS, os.cpu_count() or 1)):
            raise ConfigError(f"threads={self.threads}; allowed: 1 to {most}: more only take memory")
        if self.world == "processes" and self.workers not in (AUTO_WORKERS, PROCESSORS, 1):
            raise ConfigError(
                f"workers={self.workers}, but world=processes takes the GPUs for the ranks of one case;"
                " use workers=auto or world=simulated"
            )

    def sums_of(self, world_size: int, with_own_gpu: float) -> str:
        """Return in which order so many ranks add that share a GPU; empty: each has its own. with_own_gpu: how many
        ranks can have one."""
        shared = world_size > with_own_gpu if self.share_gpu is None else self.share_gpu
        return "ring" if self.world == "processes" and world_size > 1 and shared else ""


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
    built["observers"] = tuple(observers(config, folders))
    also = {"also": ()} if "also" in config else {}
    flat = {key: value for key, value in config.items() if key not in ("world", *OLD_KEYS)}
    for world, knobs in mapping("world", config.get("world", {})).items():
        flat["world"] = world if "world" not in flat else list(config["world"])
        flat |= {f"world.{world}.{key}": value for key, value in mapping(f"world.{world}", knobs).items()}
    main = check(Configuration, "", {**flat, **built, **also})
    return replace(main, also=tuple(_also(config, folders)))


def _also(config: Mapping[str, Any], folders: Sequence[Path]) -> Iterator[Configuration]:
    """The further grids, by name: a key given anew replaces the configuration's; problem, precision, reruns merge."""
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
            key: {**config[key], **value} if key in ("problem", "observers", "reruns", "precision") else value
            for key, value in changes.items()
        }
        try:
            yield read({**config, **merged, "also": {}}, folders)
        except ConfigError as error:
            if config.get("given_keys") == EVERYWHERE and any(key.startswith("problem.") for key in config["given"]):
                continue  # the grid asks for what the given problem cannot have
            raise ConfigError(f"also.{name}: {error}") from error


def _precisions(node: Any) -> Iterable[dict[str, str]]:
    given = {place: value for place, value in mapping("precision", node).items() if value is not None}
    for overrides in combinations("precision", given):
        check(Precision, "precision", overrides)
        yield overrides


def problem_of(given: Mapping[str, Any]) -> Problem:
    """A checked problem; seqlen_q null means seqlen, heads_kv null heads, softmax_scale null 1/sqrt(head_dim);
    documents: lengths joined by +, as 100+412. Raises ConfigError."""
    left_out = {"heads_kv": given.get("heads"), "softmax_scale": 1.0}
    filled = {key: value for key, value in left_out.items() if given.get(key) is None}
    words = [] if given.get("documents") is None else str(given["documents"]).split("+")
    documents = tuple(int(word) if word.isdecimal() else 0 for word in words)
    problem = check(Problem, "problem", {**given, **filled, "documents": documents})
    _check(problem, given.get("documents"))
    of_v = problem.head_dim_v if problem.head_dim_v != problem.head_dim else None
    crossed = problem.queries != problem.seqlen
    windowed = problem.window is not None and problem.window < problem.seqlen - 1
    return replace(  # what changes nothing is left out, so that equal problems are one
        problem,
        softmax_scale=default_softmax_scale(problem.head_dim) if "softmax_scale" in filled else problem.softmax_scale,
        mask="causal" if problem.mask == "causal_top_left" and not crossed else problem.mask,
        seqlen_q=problem.seqlen_q if crossed else None,
        window=problem.window if windowed else None,
        head_dim_v=of_v,
        documents=documents if len(documents) > 1 else (),
    )


def _check(problem: Problem, documents: object) -> None:
    keys, queries, mask, window = problem.seqlen, problem.queries, problem.mask, problem.window
    rules = (
        (problem.heads % problem.heads_kv != 0,
         f"heads_kv={problem.heads_kv} does not divide problem.heads={problem.heads}; allowed:"
         f" {', '.join(str(n) for n in range(1, min(problem.heads, MOST_HEADS) + 1) if problem.heads % n == 0)}"),
        (mask == "causal" and queries > keys,
         f"seqlen_q={queries} is above problem.seqlen={keys}: under a causal mask the first queries would see no key;"
         f" allowed: 1 to {keys}, or problem.mask=full"),
        (window is not None and queries != keys and mask == "causal_top_left",
         "window has no problem.mask=causal_top_left: some queries would see no key; use causal"),
        (window is not None and queries != keys and mask == "full",
         "window with problem.mask=full needs as many queries as keys: problem.seqlen_q=null"),
        (problem.documents and (min(problem.documents) < 1 or sum(problem.documents) != keys),
         f"documents={documents!r}; allowed: lengths from 1, joined by +, that sum to"
         f" problem.seqlen={keys}, as {keys - keys // 3}+{keys // 3}, or null"),
        (problem.padding is not None and queries != keys,
         "padding needs as many queries as keys: problem.seqlen_q=null"),
        (problem.documents and queries != keys,
         "documents needs as many queries as keys: problem.seqlen_q=null"),
    )  # fmt: skip
    for broken, text in rules:
        if broken:
            raise ConfigError(f"problem.{text}")
