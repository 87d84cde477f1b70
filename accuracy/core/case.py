"""A case: one fully resolved measurement. Frozen, hashable, serialisable; nothing reads the environment later.

Legend: B batch, S global sequence length (Sq of the queries where that is another one), H query heads, Hk key/value
heads, D head dim, W world size.
"""

import hashlib
import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from accuracy.core import fields
from accuracy.core.dtype import Finite, FromZero, OneOf, Positive, Precision, Whole
from accuracy.core.masks import Visibility, borders
from accuracy.core.sharding import padded_length

Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class Problem:
    """What is computed: q (B, Sq, H, D), k (B, S, Hk, D), v (B, S, Hk, D or head_dim_v).

    mask: `full`; `causal`, the last query sees the last key (flash-attention since 2.1); `causal_top_left`, the first
    query sees the first key only, where Sq is not S.
    """

    batch: Whole
    seqlen: Whole
    heads: Whole
    heads_kv: Whole
    head_dim: Whole
    mask: Annotated[str, OneOf("causal", "causal_top_left", "full")]
    softmax_scale: Positive  # resolved: never None
    seqlen_q: Whole | None = None  # Sq where it is not S, else None: equal cases are one case
    window: FromZero | None = None  # keys on either side of its own position that a query sees at most
    documents: tuple[int, ...] = ()  # lengths of the documents packed into the sequence; empty: one
    softcap: Positive | None = None  # scores become softcap tanh(score / softcap)
    head_dim_v: Whole | None = None  # of v and out where it is not D, else None
    sinks: Finite | None = None  # head h's softmax has one more logit, sinks + h / H, without a value
    padding: Annotated[str, OneOf("end")] | None = None  # zeros behind a length that ranks cannot share, as Megatron's
    attn_mask: str | None = None  # the name of a mask or a bias beside the first, `accuracy.runtime.given_mask`

    @property
    def causal(self) -> bool:
        """Whether a query sees keys up to its own position only."""
        return self.mask != "full"

    @property
    def query_offset(self) -> int:
        """The key position of the first query: S - Sq, as the last one sees the last key, or 0 from the top left."""
        return 0 if self.mask == "causal_top_left" else self.seqlen - self.queries

    @property
    def visibility(self) -> Visibility:
        """Which keys a query sees."""
        return Visibility(self.causal, self.window, borders(self.documents))

    @property
    def seen_by(self) -> dict[str, Any]:
        """The mask in the form that the reference takes, see `accuracy.reference.float64.seen_keys`."""
        top_left = self.mask == "causal_top_left"
        return {"causal": self.causal, "top_left": top_left, "window": self.window, "documents": self.documents}

    @property
    def features(self) -> dict[str, str]:
        """What schedules and kernels have to know beyond causal and full masks of equal lengths, and its setting."""
        given: dict[str, tuple[str, Scalar]] = {
            "cross_lengths": ("seqlen_q", self.seqlen_q), "documents": ("documents", self.documents_text or None),
            "top_left": ("mask", self.mask if self.mask == "causal_top_left" else None),
        }  # fmt: skip
        plain = ("window", "softcap", "head_dim_v", "sinks", "attn_mask")
        given |= {name: (name, getattr(self, name)) for name in plain}
        return {name: f"problem.{key}={value}" for name, (key, value) in given.items() if value is not None}

    def padded(self, sharding: str, size: int) -> "Problem":
        """What ranks compute: with `padding` the length that they can share. Of a full mask or of documents the padding
        is a document; under a causal mask no token sees it, and what it sees itself is thrown away."""
        length = padded_length(sharding, self.seqlen, size)
        if self.padding is None or length == self.seqlen:
            return self
        apart = self.documents or ((self.seqlen,) if not self.causal else ())
        return replace(self, seqlen=length, documents=(*apart, length - self.seqlen) if apart else ())

    @property
    def documents_text(self) -> str:
        """The lengths of packed documents in one word, `100+412`."""
        return "+".join(str(length) for length in self.documents)

    @property
    def queries(self) -> int:
        """Sq, the number of query tokens."""
        return self.seqlen if self.seqlen_q is None else self.seqlen_q

    @property
    def pairs(self) -> int:
        """Products of a query and a key, of all heads."""
        return self.batch * self.heads * self.queries * self.seqlen

    @property
    def value_dim(self) -> int:
        """The head dim of v, out, dout and dv."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def sink_logits(self) -> tuple[float, ...]:
        """Of each head, as float32; none without sinks."""
        return tuple(array("f", [] if self.sinks is None else [self.sinks + x / self.heads for x in range(self.heads)]))

    def length(self, tensor: str) -> int:
        """How many tokens a tensor has: those of the keys for k, v, dk and dv, else those of the queries."""
        return self.seqlen if tensor in ("k", "v", "dk", "dv") else self.queries


def options_text(options: tuple[tuple[str, Scalar], ...]) -> str:
    """Knobs in one line, `key_chunk=64,query_chunk=128`; one at null changes nothing and is not said."""
    return ",".join(f"{key}={value}" for key, value in options if value is not None)


@dataclass(frozen=True)
class Part:
    """A chosen kernel, input distribution, schedule or observer.

    source: a module's dotted name, or the path of a Python file.
    """

    name: str
    source: str
    options: tuple[tuple[str, Scalar], ...] = ()

    @property
    def options_text(self) -> str:
        """The knobs in one line, see the function."""
        return options_text(self.options)


@dataclass(frozen=True)
class Variant:
    """A way to compute attention over ranks or chunks: sharding, forward schedule and backward schedule."""

    name: str
    sharding: str
    forward: Part
    backward: Part
    options: tuple[tuple[str, Scalar], ...] = ()

    @property
    def options_text(self) -> str:
        """As of a part."""
        return options_text(self.options)


@dataclass(frozen=True)
class Other:
    """The path that a case's own is compared with: all that may differ between two ways to compute one problem.

    kernel: `auto` until a plan resolves it.
    """

    variant: Variant
    kernel: Part
    forward_precision: Precision
    backward_precision: Precision
    precision_text: str
    world: str
    world_size: int

    @property
    def text(self) -> str:
        """As `path_b` takes it, `ring/partial:accumulate@8+eager`."""
        options, name = dict(self.variant.options), self.variant.name
        if not str(function := options.get("fn", "accuracy.")).startswith("accuracy."):  # a user's, not a package's
            name, options["sharding"] = str(function), self.variant.sharding
        places = fields.pairs_of(self.precision_text)
        return fields.path_text(name, options, places, self.world_size, self.kernel.name, dict(self.kernel.options))


@dataclass(frozen=True)
class Case:
    """Everything that decides the numbers of one measurement, and what is asked of it beside its errors."""

    problem: Problem
    inputs: Part
    seed: int
    dtype: str  # of all tensors
    variant: Variant
    kernel: Part
    forward_precision: Precision
    backward_precision: Precision
    precision_text: str  # what differs from the schedules' published policies; "" for nothing
    world: str
    world_size: int
    device: str  # "cpu" or "cuda"
    observers: tuple[Part, ...] = ()  # the questions asked beside the errors; they change none of the numbers
    against: Other | None = None  # the path whose results this one's are compared with, too
    inputs_dtype: str = ""  # of 8 bits, to which the inputs are rounded beyond dtype; "": they are not
    sums: str = ""  # in which order ranks that share a GPU add (`accuracy.world.sums`); "": each has its own device

    @property
    def other(self) -> "Case":
        """The case of the path that this one is compared with. Raises ValueError where there is none."""
        if self.against is None:
            raise ValueError("the case is compared with no other path")
        return replace(self, **vars(self.against), observers=(), against=None, sums="")

    def options_of(self, observer: str) -> dict[str, Scalar] | None:
        """The options of an observer that the case is asked by; None where it is not."""
        return next((dict(each.options) for each in self.observers if each.name == observer), None)

    @property
    def said_dtype(self) -> str:
        """What the configuration and the table call the case's dtype."""
        return self.inputs_dtype or self.dtype

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits of the case's content, whatever its origin on disk."""
        return digest(fields.without_defaults(fields.values(self)))[:12]

    def identity(self) -> dict[str, object]:
        """The case's columns of the table, its id among them."""
        return {"case_id": self.id, **fields.identity(self)}


def digest(content: Mapping[str, object]) -> str:
    """SHA-256 of the content's canonical JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
