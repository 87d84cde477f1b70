"""What does a file of a capture say of itself? `Facts`, written and read as JSON in the file's own header; no torch.

A capture is a folder of safetensors files, one for each call of attention (layer, step, call) and rank. A file holds
`LAYER.q`, `LAYER.k`, `LAYER.v`, what the model returned (`LAYER.out`, `.lse`, `.dq`, `.dk`, `.dv`), `.dout`, and a
`.mask` where there was one, as (B, S, heads, D) whatever layout the model has; lse (B, H, S).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from accuracy.core.dtype import FromZero, OneOf, Whole
from accuracy.core.errors import ConfigError
from accuracy.core.sharding import SHARDINGS, of_each

SUFFIX = ".safetensors"
HEADER = "accuracy_capture"
INPUTS = ("q", "k", "v")
RESULTS = ("out", "lse", "dq", "dk", "dv")
AT = "@"  # LAYER@STEP
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
    "BOOL": "bool",
}  # fmt: skip
"""torch's names of what safetensors calls the dtypes."""
Single = Annotated[float, Ge(-(2.0**127)), Le(2.0**127)]
"""A number that a kernel takes in float32."""
Normal = Annotated[float, Ge(2.0**-126), Le(2.0**127)]
Distance = Annotated[int, Ge(-(2**31)), Le(2**31)]


@dataclass(frozen=True)
class Facts:
    """Of one call on one rank. shapes: of the file's tensors, (B, S/W, heads, D); ranks: those that share the sequence,
    this one alone if it is whole; order: of the call within its step; window: keys to the left and right of the
    diagonal; documents: lengths, of keys too where documents_k is empty; by_document: each rank has a part of each, cut
    as `sharding` says; begin: if given, documents are of this rank's tokens alone, and the first one of them begins
    at this token of all; sinks: a logit a head; mask: how `.mask` is meant."""

    layer: str
    step: FromZero
    rank: FromZero
    ranks: tuple[FromZero, ...]
    function: str
    layout: str
    dtype: str
    shapes: dict[str, tuple[Whole, ...]]
    scale: Normal
    call: FromZero = 0
    order: FromZero = 0
    sharding: Annotated[str, OneOf(*SHARDINGS)] = "contiguous"
    causal: bool = False
    top_left: bool = False
    window: tuple[Distance | None, Distance | None] | None = None
    documents: tuple[Whole, ...] = ()
    documents_k: tuple[Whole, ...] = ()
    by_document: bool = False
    begin: FromZero | None = None
    softcap: Normal | None = None
    sinks: tuple[Single, ...] = ()
    mask: Annotated[str, OneOf("", "seen", "added")] = ""
    dropout: float = 0.0
    autocast: str = ""
    tf32: bool = False
    device: str = "cpu"
    torch: str = ""
    compiled: bool = False  # the model is, but a captured step runs it as it is written
    words: tuple[str, ...] = ()  # arguments that the call gave beside q, k and v
    note: str = ""  # why the call cannot be judged

    @property
    def name(self) -> str:
        """LAYER@STEP, with #CALL for a layer's second call in the step."""
        return f"{self.layer}{AT}{self.step}{f'#{self.call}' if self.call else ''}"

    @property
    def file(self) -> str:
        """What its file is called."""
        word = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in self.layer)
        return f"{word}.step{self.step:06d}.call{self.call}.rank{self.rank}{SUFFIX}"

    @property
    def header(self) -> dict[str, str]:
        """The file's metadata."""
        return {HEADER: _KIND.dump_json(self).decode()}

    @property
    def cut(self) -> str:
        """How its ranks have the tokens: the sharding, of each document where they have a part of each."""
        return of_each(self.sharding, self.documents if self.by_document else ())


@dataclass(frozen=True)
class Recorded:
    """One call, all of its ranks. files: in the order of the facts' `ranks`."""

    facts: tuple[Facts, ...]
    files: tuple[Path, ...]

    @property
    def first(self) -> Facts:
        """Of the first rank; what all ranks share is there."""
        return self.facts[0]

    @property
    def problem(self) -> dict[str, Any]:
        """The call as `problem` and `inputs.captured.layer` write it, of the whole sequence. Raises ConfigError where
        no problem says it."""
        facts = self.first
        queries, keys = (sum(each.shapes[name][1] for each in self.facts) for name in "qk")
        left, right = facts.window or (None, None)
        odd = {
            "a mask tensor": facts.mask, f"window {facts.window}": right not in (None, 0 if facts.causal else left),
            "documents of keys": facts.documents_k, "sinks of its own": facts.sinks,
        }  # fmt: skip
        for what, present in odd.items():
            if present:
                raise ConfigError(f"{facts.name} has {what}, which no problem says; judge it with accuracy judge")
        causal = "causal_top_left" if facts.top_left and queries != keys else "causal"
        (batch, _, heads, width), value = facts.shapes["q"], facts.shapes["v"][3]
        return {
            "batch": batch, "seqlen": keys, "seqlen_q": queries if queries != keys else None, "heads": heads,
            "heads_kv": facts.shapes["k"][2], "head_dim": width, "head_dim_v": value if value != width else None,
            "mask": causal if facts.causal else "full", "window": left, "softcap": facts.softcap,
            "documents": "+".join(map(str, facts.documents)) or None, "softmax_scale": facts.scale, "sinks": None,
        }  # fmt: skip


def is_capture(path: Path) -> bool:
    """A folder that holds files of a capture."""
    return path.is_dir() and any(path.glob(f"*.rank*{SUFFIX}"))


def recorded(folder: Path) -> list[Recorded]:
    """Every call in the order in which they were made, with all of its ranks. Raises ConfigError for a file that cannot
    be read, shapes that disagree, and a rank that is missing."""
    if not is_capture(folder):
        raise ConfigError(f"{folder} holds no capture; give the folder of `with accuracy.capture(model, FOLDER)`")
    found = [(facts_of(path), path) for path in sorted(folder.glob(f"*.rank*{SUFFIX}"))]

    def key(one: tuple[Facts, Path]) -> tuple[Any, ...]:
        return one[0].step, one[0].order, one[0].layer, one[0].call, one[0].ranks

    found.sort(key=lambda one: (*key(one), one[0].rank))
    return [_whole(list(same)) for _, same in groupby(found, key)]


def matches(layer: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern fits a layer's name, or that of a module around it: `*.3` fits model.layers.3.attention."""
    parts = layer.split(".")
    around = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in around)


def choose(folder: Path, layer: str) -> Recorded:
    """The call that LAYER, LAYER@STEP or LAYER@STEP#CALL names, of a layer alone the first one. Raises ConfigError."""
    found = recorded(folder)
    for one in found:
        if layer in (one.first.layer, one.first.name):
            return one
    names = ", ".join(dict.fromkeys(one.first.layer for one in found[:8]))
    raise ConfigError(f"{layer} is not in {folder}; allowed: {names}{', ...' if len(found) > 8 else ''}, or LAYER@STEP")


def facts_of(path: Path) -> Facts:
    """Read and checked against the tensors that are there. Raises ConfigError."""
    about = path.stat()
    return _facts_of(path, (about.st_ino, about.st_size, about.st_mtime_ns))


@cache
def _facts_of(path: Path, version: tuple[int, ...]) -> Facts:
    try:
        with safe_open(path, framework="np") as file:
            given = (file.metadata() or {}).get(HEADER)
            held = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: tuple(each.get_shape()) for name, each in held.items()}
            dtypes = {name: str(each.get_dtype()) for name, each in held.items()}
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} cannot be read as safetensors ({' '.join(str(error).split())})") from error
    if given is None:
        raise ConfigError(f"{path} is no file of a capture: its header lacks {HEADER}")
    try:
        facts = _KIND.validate_json(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where} in its header: {first['msg']}; capture it again") from error
    given = dtypes.get(f"{facts.layer}.q", "")
    shapes = {name.removeprefix(f"{facts.layer}."): shape for name, shape in shapes.items()}
    if wrong := _disagreement(facts, shapes, DTYPES.get(given, given)):
        raise ConfigError(f"{path}: {wrong}; capture it again")
    return facts


def _disagreement(facts: Facts, shapes: dict[str, tuple[int, ...]], dtype: str) -> str | None:
    """What the header says otherwise than the tensors are."""
    for name in sorted({*facts.shapes, *shapes, *INPUTS}):
        if facts.shapes.get(name) != shapes.get(name):
            return f"{name} is {list(shapes.get(name, ()))}, its header says {list(facts.shapes.get(name, ()))}"
    return None if facts.dtype == dtype else f"q is {dtype}, its header says dtype {facts.dtype[:40]!r}"


def _whole(found: list[tuple[Facts, Path]]) -> Recorded:
    first = found[0][0]
    ranks = {each.rank: (each, path) for each, path in found}
    if len(ranks) < len(found):
        names = ", ".join(path.name for _, path in found)
        raise ConfigError(f"{first.name}: two files are of the same rank ({names}); remove one of them")
    if missing := [rank for rank in first.ranks if rank not in ranks]:
        raise ConfigError(
            f"{first.name}: of its ranks {list(first.ranks)} the file of rank {missing[0]} is missing"
            f" ({replace(first, rank=missing[0]).file}); copy the files of all ranks into one folder"
        )
    facts = tuple(ranks[rank][0] for rank in first.ranks)
    for each in facts:
        if each.shapes != first.shapes or (each.scale, each.causal, each.dtype) != (
            first.scale, first.causal, first.dtype,
        ):  # fmt: skip
            raise ConfigError(f"{first.name}: rank {each.rank} has other shapes or settings than rank {first.rank}")
    if first.begin is not None:
        documents = _documents(facts)
        facts = tuple(replace(each, documents=documents, begin=None) for each in facts)
    return Recorded(facts, tuple(ranks[rank][1] for rank in first.ranks))


def _documents(facts: Sequence[Facts]) -> tuple[int, ...]:
    """Lengths of the whole sequence's documents, out of what each rank says of its own tokens."""
    length = facts[0].shapes["q"][1]
    ends = {length * len(facts)}
    for place, each in enumerate(facts):
        ends |= {each.begin or 0, *(place * length + end for end in list(accumulate(each.documents))[:-1])}
    return tuple(end - begin for begin, end in pairwise(sorted(ends | {0})))


_KIND = TypeAdapter(Facts)
