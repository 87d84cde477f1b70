"""What does a file of a capture say of itself? `Facts`, written and read as JSON in the file's own header; no torch.

A capture is a folder of safetensors files, one for each call of attention (layer, step, call) and rank. A file holds
`LAYER.q`, `LAYER.k`, `LAYER.v`, what the model returned (`LAYER.out`, `.lse`, `.dq`, `.dk`, `.dv`), `.dout`, and a
`.mask` where there was one, as (B, S, heads, D) whatever layout the model has; lse (B, H, S).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import accumulate, chain, groupby, pairwise
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from accuracy.core.dtype import FromZero, OneOf, Whole
from accuracy.core.errors import ConfigError
from accuracy.core.sharding import SHARDINGS, of_each, unsupported

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
    def heads(self) -> tuple[int, int]:
        """H and Hk."""
        return self.shapes["q"][2], self.shapes["k"][2]

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
    named = {name: name.removeprefix(f"{facts.layer}.") for name in shapes}
    of_tensors = {named[name]: x for name, x in shapes.items()}, {named[name]: x for name, x in dtypes.items()}
    for wrong in chain(_disagreements(facts, *of_tensors), _contradictions(facts)):
        raise ConfigError(f"{path}: {wrong}; capture it again")
    return facts


def _disagreements(facts: Facts, shapes: dict[str, tuple[int, ...]], dtypes: dict[str, str]) -> Iterator[str]:
    """What the header says otherwise than the tensors are."""
    for name in sorted({*facts.shapes, *shapes, *INPUTS}):
        if name not in (*INPUTS, *RESULTS, "dout", "mask"):
            yield f"{name} is no tensor of attention"
        if facts.shapes.get(name) != shapes.get(name):
            yield f"{name} is {list(shapes.get(name, ()))}, its header says {list(facts.shapes.get(name, ()))}"
        if name in INPUTS and len(shapes.get(name, ())) != 4:
            yield f"{name} is {list(shapes.get(name, ()))}; allowed: (B, S, heads, D)"
    q, k, v = (shapes[name] for name in INPUTS)
    if k[:3] != v[:3] or (q[0], q[3]) != (k[0], k[3]) or q[2] % k[2]:
        yield f"q {list(q)}, k {list(k)} and v {list(v)} do not belong together"
    out = (*q[:3], v[3])
    for name, shape in {"out": out, "dout": out, "lse": (q[0], q[2], q[1]), "dq": q, "dk": k, "dv": v}.items():
        if shapes.get(name, shape) != shape:
            yield f"{name} is {list(shapes[name])}, but q, k and v make it {list(shape)}"
    if facts.dtype != (dtype := DTYPES.get(dtypes["q"], dtypes["q"])):
        yield f"q is {dtype}, its header says dtype {facts.dtype[:40]!r}"
    if ("mask" in shapes) != bool(facts.mask) or (facts.mask == "seen") != (dtypes.get("mask") == "BOOL"):
        yield f"mask in its header is {facts.mask!r}, its tensor is {dtypes.get('mask', 'absent')}"
    every, given = (q[0], q[2], q[1], k[1]), shapes.get("mask", ())
    fits = len(given) == 4 and all(one in (1, most) for one, most in zip(given, every, strict=True))
    if facts.mask and not facts.note and not fits:
        yield f"mask is {list(given)}; allowed: {list(every)}, or 1 in place of any"


def _contradictions(facts: Facts) -> Iterator[str]:
    """What no call of these shapes can have."""
    size, heads, queries, keys = len(facts.ranks), facts.heads[0], facts.shapes["q"][1], facts.shapes["k"][1]
    if facts.rank not in facts.ranks or len({*facts.ranks}) < size:
        yield f"rank {facts.rank} is none of its ranks {list(facts.ranks)[:8]}, or they name one twice"
    if facts.sinks and len(facts.sinks) != heads:
        yield f"it has {len(facts.sinks)} sinks for {heads} heads"
    if facts.begin is not None and facts.begin >= size * queries:
        yield f"its documents begin at token {facts.begin} of {size * queries}"
    if facts.note:  # nobody computes with the rest
        return
    whole = 1 if facts.begin is not None else size
    lengths = {"documents": (facts.documents, queries), "documents_k": (facts.documents_k or facts.documents, keys)}
    for name, (given, length) in lengths.items():
        if given and (sum(given) != whole * length or len(given) != len(facts.documents)):
            yield f"{name} of {sum(given)} tokens in its header, of {whole * length} in its tensors"
    for length in facts.documents if facts.by_document else (size * queries,):
        if size > 1 and (wrong := unsupported(facts.sharding, length, size)):
            yield wrong


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
