"""What identifies a case? One list, from which the table, the grid, the gate, the report, claims and the digest derive.

In: a case, or a row of the results table. Out: its values, its words on the command line, its text in a label.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from accuracy.core.paths import CONFIGS

if TYPE_CHECKING:
    from accuracy.core.case import Case, Other, Part
    from accuracy.core.dtype import Precision

Row = Mapping[Any, Any]
Settings = Mapping[str, Any]

VARIANT, PRECISION, KERNEL, INPUTS, DTYPE = "variant", "precision", "kernel", "inputs", "dtype"
WORLD, WORLD_SIZE, SEED, PROBLEM, DEVICE = "world", "world_size", "seed", "problem", "device"
PATH = "path"  # the other path that a case is compared with
CONTENT = "content"  # of the digest alone: what code was chosen, and what else is recorded beside the same numbers
NOTHING = object()


@dataclass(frozen=True)
class Field:
    """One setting of a case.

    name: of the column. role: what the setting belongs to. type: of the column, as pyarrow names it. word: its name on
    the command line, with {columns} of its row; "" where it has none. knobs: whether the value is text of several,
    `key_chunk=64,query_chunk=128`. default: the value that labels and command lines omit, or what returns that of a
    row. written: what the command line has in place of the value. within: the column whose text also says this field,
    where it has no column of its own.
    """

    name: str
    role: str
    value_of: Callable[["Case"], Any]
    type: str = "string"
    word: str = ""
    knobs: bool = False
    default: Any = NOTHING
    written: str = ""
    within: str = ""

    def is_default(self, row: Row) -> bool:
        """Return whether a row has the default value, which labels and command lines omit."""
        default = self.default(row) if callable(self.default) else self.default
        return default is not NOTHING and bool(row[self.name] == default)

    def text(self, case: "Case") -> str:
        """The case's value as on the command line, `problem.window=128`."""
        row = values(case)
        return " ".join(self.words(row)) or f"{self.word.format_map(row)}={row[self.name]}"

    def words(self, row: Row) -> list[str]:
        """What says a row's value on the command line, and nothing else does; a missing value has no words."""
        value = row.get(self.name)
        if not self.word or not _present(value) or self.is_default(row):
            return []
        word = self.word.format_map(row)
        if self.knobs:
            return [f"{word}.{knob}" for knob in _knobs(str(value))]
        first, *settings = str(value).split(",") if self.name in _SHARED else [self.written or _text(value)]
        return [f"{word}={first}", *(f"{self.role}.{setting}" for setting in settings)]

    def label(self, row: Row) -> str:
        """A row's value in a label: names as they are, numbers with theirs; empty where it is the default."""
        value = row[self.name]
        if not _present(value) or self.is_default(row):
            return ""
        return str(value) if self.type == "string" else f"{self.name} {_text(value)}"


def _options(name: str, role: str, word: str, value_of: Callable[["Case"], Any]) -> Field:
    return Field(name, role, value_of, word=word, knobs=True, default="")


def _setting(name: str, type: str, value_of: Callable[["Case"], Any] | None = None, **more: Any) -> Field:
    value_of = value_of or (lambda case: getattr(case.problem, name))
    return Field(name, PROBLEM, value_of, type, f"problem.{name}", **more)


def _parts(case: "Case") -> list[tuple[str, ...]]:
    """The chosen code with its knobs, wherever it is on disk."""
    own, other = (_parts_of_path(path) for path in (case, case.against))
    found = [*own, _part("inputs", case.inputs), *other]
    if case.against is not None:
        path = case.against
        found.append((path.world, path.variant.name, path.variant.sharding, path.precision_text))
    return found


def _parts_of_path(path: "Case | Other | None") -> list[tuple[str, ...]]:
    if path is None:
        return []
    return [_part("variant", path.variant.forward), _part("variant", path.variant.backward),
            _part("kernel", path.kernel)]  # fmt: skip


def _policies(case: "Case") -> list[str]:
    paths: list[Case | Other] = [case, *filter(None, [case.against])]
    return [_policy(each) for path in paths for each in (path.forward_precision, path.backward_precision)]


@cache
def _policy(policy: "Precision") -> str:
    return str(astuple(policy))


@cache
def _part(kind: str, part: "Part") -> tuple[str, str, str]:
    """A part of this package's is named by its kind, so that its id does not depend on the file that it lies in."""
    ours = part.source.startswith("accuracy.") and re.split("[.:]", part.source)[-1] == part.name
    return part.name, f"accuracy.{kind}.{part.name}" if ours else part.source.rpartition("/")[2], part.options_text


def _observers(case: "Case") -> list[tuple[str, ...]]:
    return [_part("observers", each) for each in case.observers]


def default_softmax_scale(head_dim: float) -> float:
    """1 / sqrt(D), as Vaswani et al. 2017."""
    return 1.0 / math.sqrt(head_dim)


def _default_scale(row: Row) -> float | None:
    head_dim = row.get("head_dim") or math.nan
    return default_softmax_scale(head_dim) if head_dim > 0 else None


FIELDS = (
    Field("variant", VARIANT, lambda case: case.variant.name, word="variant"),
    _options("options", VARIANT, "variant.{variant}", lambda case: case.variant.options_text),
    _options("precision", PRECISION, "precision", lambda case: case.precision_text),  # beside the published policy
    Field("kernel", KERNEL, lambda case: case.kernel.name, word="kernel"),
    _options("kernel_options", KERNEL, "kernel.{kernel}", lambda case: case.kernel.options_text),
    Field("inputs", INPUTS, lambda case: case.inputs.name, word="inputs"),
    _options("inputs_options", INPUTS, "inputs.{inputs}", lambda case: case.inputs.options_text),
    Field("dtype", DTYPE, lambda case: case.said_dtype, word="dtype"),
    Field("world", WORLD, lambda case: case.world, word="world", default="simulated"),
    Field("sums", WORLD, lambda case: case.sums, word="world.processes.share_gpu", default="", written="true"),
    Field("world_size", WORLD_SIZE, lambda case: case.world_size, "int32", "world_size"),
    Field("sharding", VARIANT, lambda case: case.variant.sharding),
    Field("seed", SEED, lambda case: case.seed, "int64", "seed"),
    _setting("mask", "string"),  # the column: causal,window=128, and other settings that few cases have
    _setting("window", "int64", default=None, within="mask"),
    _setting("documents", "string", lambda case: case.problem.documents_text, default="", within="mask"),
    _setting("head_dim_v", "int64", default=None, within="mask"),
    _setting("sinks", "float64", default=None, within="mask"),
    _setting("attn_mask", "string", default=None, within="mask"),
    _setting("padding", "string", default=None, within="mask"),
    _setting("softcap", "float64", lambda case: case.problem.softcap or 0.0, default=0.0),
    _setting("batch", "int32"),
    _setting("seqlen", "int64"),  # of the keys
    _setting("seqlen_q", "int64", lambda case: case.problem.queries, default=lambda row: row.get("seqlen")),
    *(_setting(name, "int32") for name in ("heads", "heads_kv", "head_dim")),
    _setting("softmax_scale", "float64", default=_default_scale),
    Field("against", PATH, lambda case: "" if case.against is None else case.against.text, word="path_b",
          default=""),
    Field("device", DEVICE, lambda case: case.device),  # a row says the model of it
    Field("parts", CONTENT, _parts),
    Field("policies", CONTENT, _policies),
    Field("observers", CONTENT, _observers, default=[]),
)  # fmt: skip

AXES = tuple(each for each in FIELDS if each.word)
COLUMNS = tuple(each for each in FIELDS if each.role != CONTENT and not each.within)
_SHARED = {each.within for each in FIELDS if each.within}
_BY_NAME = {each.name: each for each in FIELDS}


def names(*roles: str) -> tuple[str, ...]:
    """Columns of these roles; of none: all columns."""
    return tuple(each.name for each in COLUMNS if not roles or each.role in roles)


def names_but(*roles: str) -> tuple[str, ...]:
    """The other columns."""
    return tuple(each.name for each in COLUMNS if each.role not in roles)


def values(case: "Case") -> dict[str, Any]:
    """Every field's value, by name."""
    return {each.name: each.value_of(case) for each in FIELDS}


def identity(case: "Case") -> dict[str, Any]:
    """The case's columns of the table."""
    row = values(case)
    for each in FIELDS:
        if each.within and not each.is_default(row):
            row[each.within] = f"{row[each.within]},{each.name}={row[each.name]}"
    return {each.name: row[each.name] for each in COLUMNS}


def without_defaults(row: Row) -> dict[str, Any]:
    """A row's values but defaults, so that a new field leaves older digests alone; what is no field stays."""
    return {name: value for name, value in row.items() if name not in _BY_NAME or not _BY_NAME[name].is_default(row)}


def is_function(options: object) -> bool:
    """Whether a variant with these options is a function, of a user or of a published package; ours are schedules."""
    return "fn=" in str(options)


def is_foreign(options: object) -> bool:
    """Whether a variant with these options is a function of a user's; those of published packages have adapters of this
    package."""
    return is_function(options) and "fn=accuracy." not in str(options)


def arithmetic_of(options: object) -> str:
    """Return what a user's function is said, or was found, to compute its products in; empty: its own dtype."""
    return str(pairs_of(str(options)).get("arithmetic", "")) if is_foreign(options) else ""


def words(row: Row) -> list[str]:
    """The overrides of the command line that choose a row's case; missing columns have none."""
    if not is_foreign(row.get("options")):
        return [word for each in COLUMNS for word in each.words(row)]
    named = {**row, "variant": "callable"}  # a user's function has its own name in the table
    sharding = [f"variant.sharding={row['sharding']}"] if _present(row.get("sharding")) else []
    return [word for each in COLUMNS for word in each.words(named)] + sharding


def label(row: Row, names: tuple[str, ...] | list[str]) -> str:
    """Values of a row in one line, `ring · kernel eager`; defaults are left out behind the first."""
    first, *others = names
    return " · ".join([str(row[first]), *filter(None, (_BY_NAME[name].label(row) for name in others))])


def spoken(text: str) -> str:
    """A label inside a sentence, `ring (kernel eager)`."""
    first, *details = text.split(" · ")
    return f"{first} ({', '.join(details)})" if details else first


def _knobs(options: str) -> list[str]:
    """`key_chunk=64,query_chunk=128` as one each; a value may hold commas."""
    return [re.sub("=None$", "=null", pair) for pair in re.split(",(?=[^,]*=)", options)]


def _present(value: object) -> bool:
    return value is not None and value == value and value != ""


def _text(value: object) -> str:
    """Whole numbers of a column that lacks some elsewhere are floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def path_text(variant: str, options: Settings, places: Settings, world_size: int, kernel: str, knobs: Settings) -> str:
    """Return a path in one word, `ring/partial:accumulate@8+eager`, without the knobs that are as configured; the same
    of a case and of a row of the table. `accuracy.config.paths` reads it.

    places: of the precision policy, those that are not as published. options: a function's with its sharding and `fn`,
    which is left out: `variant` names it.
    """
    shown = _not_configured("variant", "callable" if "fn" in options else variant, options)
    shown.pop("fn", None)
    head = _word(variant, {**shown, **places})
    return f"{head}@{world_size}+{_word(kernel, _not_configured('kernel', kernel, knobs))}"


def pairs_of(text: object) -> dict[str, str]:
    """`key_chunk=64,query_chunk=128` as a table writes settings."""
    return dict(pair.split("=", 1) for pair in str(text or "").split(",") if "=" in pair)


def _word(name: str, settings: Settings) -> str:
    return "/".join([name, *(f"{key}:{value}" for key, value in settings.items())])


def _not_configured(kind: str, name: str, settings: Settings) -> dict[str, Any]:
    configured = {key: str(value) for key, value in _configured(kind, name).items()}
    return {key: value for key, value in settings.items() if configured.get(key, "None") != str(value)}


@cache
def _configured(kind: str, name: str) -> dict[str, Any]:
    """What the package's configuration sets for a part; nothing for others' parts."""
    import yaml  # type: ignore[import-untyped]  # here: the help does without

    file = CONFIGS / kind / f"{name}.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
    return dict(content or {})
