"""Which low-precision formats are there, and what does a quantised attention round, to which format, by which scales?

Sources of the formats: OCP FP8 (e4m3, e5m2), Graphcore and AMD (e4m3fnuz, arXiv 2206.02915), OCP MX (e2m1, e8m0
scales), NVIDIA (nvfp4: e2m1 with e4m3 scales of 16 elements). Integers are symmetric.
"""

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any

from annotated_types import Ge

from accuracy.core.dtype import INPUT_FORMATS, FromZero, OneOf, Whole
from accuracy.core.fields import pairs_of

PLACES = ("q", "k", "v", "p", "ds", "do", "out", "dq", "dk", "dv")
"""What may be quantised: operands of products, then results."""


@dataclass(frozen=True)
class LowFormat:
    """precision, min_exponent: as of `accuracy.core.dtype.Format`; largest: beyond it values saturate.

    An integer format of n bits has the spacing 1 everywhere: precision n, min_exponent n - 1.
    """

    name: str
    bits: int
    precision: int
    min_exponent: int
    largest: float

    @property
    def unit_roundoff(self) -> float:
        """u = 2^-precision, of an integer format beside its largest value."""
        return 2.0**-self.precision

    @property
    def of_tensor(self) -> float:
        """What u is to a tensor's values, which are below the largest: of an integer format, whose spacing does not
        shrink with them, 8 times as much. (Of weights and gradients of scores the largest is about 16 times the root
        mean square.)"""
        return self.unit_roundoff * (8 if self.name.startswith("int") else 1)

    @property
    def smallest(self) -> float:
        """The smallest number above 0."""
        return 2.0 ** (self.min_exponent - self.precision + 1)

    @property
    def scaled(self) -> bool:
        """Whether values are divided by a scale before the cast; 16-bit formats have range enough."""
        return self.bits <= 8


FORMATS = {
    each.name: each
    for each in (
        LowFormat("e4m3", 8, 4, -6, 448.0), LowFormat("e4m3fnuz", 8, 4, -7, 240.0),
        LowFormat("e5m2", 8, 3, -14, 57344.0),
        LowFormat("e2m1", 4, 2, 0, 6.0), LowFormat("int8", 8, 8, 7, 127.0), LowFormat("int4", 4, 4, 3, 7.0),
        LowFormat("float16", 16, 11, -14, 65504.0), LowFormat("bfloat16", 16, 8, -126, 2.0**128 - 2.0**120),
    )
}  # fmt: skip
NOT = "none"
ELEMENTS = {"elements_16": 16, "elements_32": 32}
FLOAT32_BITS = 24
STEP = 32  # products that a tensor core of Hopper adds at once in 8 bits

Place = Annotated[str, OneOf(NOT, *FORMATS)]


@dataclass(frozen=True)
class Policy:
    """What is quantised and how. The defaults quantise nothing.

    q, k, v, p, ds, do: the format of an operand of a product (p: weights of the softmax; ds: gradients of scores);
    out, dq, dk, dv: of a result.
    granularity: what shares a scale, amax / largest: the tensor of a call, a head, `block` tokens of a head, a token of
    a head, or 16 or 32 elements along the sum of the product that reads them. query_block: tokens of a block of q, dO,
    out, dq and of the rows of P and dS; 0: `block`. scale_format: of the scales; e8m0: powers of two, rounded up (arXiv
    2506.08027); e4m3: on top of a float32 scale of the tensor, as in nvfp4.
    p_prescale: factor of the weights before their cast, undone behind it; 0: by the largest of a tile, as the others.
    smooth_k: the mean key is taken off before the cast, in the inputs' dtype, and its share of the scores added
    unrounded (SageAttention).
    hadamard: q and k are turned by one random Hadamard matrix before the cast (FlashAttention-3).
    accumulator_bits: significant bits of a product's sum, cut off, not rounded, after every 32 terms (Hopper: 14);
    cut_products: whether each of the 32 products is cut off there, too, before they are added (Hopper's tensor core in
    8 bits: arXiv 2511.10909); else their sum alone is.
    flush_interval: terms after which that sum is added to a float32 one and begins anew; 0: never.
    half_terms: terms of P v after which the sum of a tile is rounded to float16, before it is added to a float32 one
    (SageAttention 1; a tensor core's 16, Triton's interpreter's: the tile); 0: never.
    delta_of_cast: whether delta, the row sums of dO times out, is of the cast dO (a kernel that is given no other).
    ds_by_half: whether the dS that dq is made of is rounded to float16 before its cast (cuDNN 9 on Hopper).
    dq_by_tile: whether each tile's product is added to a float32 dq (cuDNN 9 on Hopper), whatever the flush interval.
    descending: whether tiles of keys come from the last to the first (FlashAttention-3, FlashInfer).
    """

    q: Place = NOT
    k: Place = NOT
    v: Place = NOT
    p: Place = NOT
    ds: Place = NOT
    do: Place = NOT
    out: Place = NOT
    dq: Place = NOT
    dk: Place = NOT
    dv: Place = NOT
    granularity: Annotated[str, OneOf("tensor", "head", "block", "token", *ELEMENTS)] = "tensor"
    block: Whole = 64
    query_block: FromZero = 0
    scale_format: Annotated[str, OneOf("float32", "e8m0", "e4m3")] = "float32"
    p_prescale: Annotated[float, Ge(0)] = 1.0
    smooth_k: bool = False
    hadamard: bool = False
    accumulator_bits: Annotated[int, Ge(8)] = FLOAT32_BITS
    cut_products: bool = False
    flush_interval: FromZero = 0
    half_terms: FromZero = 0
    delta_of_cast: bool = False
    ds_by_half: bool = False
    dq_by_tile: bool = False
    descending: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for what no hardware or no arithmetic can mean."""
        given = [FORMATS[word] for word in self.formats.values()]
        micro = self.granularity in ELEMENTS
        if self.scale_format == "e4m3" and self.granularity != "elements_16":
            raise ValueError(f"scale_format=e4m3 with granularity={self.granularity}; allowed: elements_16 (nvfp4)")
        if micro and (wanted := "e4m3" if self.granularity == "elements_16" else "e8m0") != self.scale_format:
            raise ValueError(f"granularity={self.granularity} with scale_format={self.scale_format}; allowed: {wanted}")
        for place, form in zip(self.formats, given, strict=True):
            allowed = ("e2m1",) if self.scale_format == "e4m3" else ("e4m3", "e5m2", "e2m1", "int8")
            if micro and form.scaled and form.name not in allowed:
                names = ", ".join(allowed)
                raise ValueError(f"{place}={form.name} with granularity={self.granularity}; allowed: {names}")
        if self.p != NOT and not micro and self.p_prescale > (most := FORMATS[self.p].largest):
            raise ValueError(f"p={self.p} with p_prescale={self.p_prescale:g}; allowed: up to {most:g}")
        if self.accumulator_bits > FLOAT32_BITS:
            raise ValueError(f"accumulator_bits={self.accumulator_bits}; allowed: 8 to {FLOAT32_BITS} (float32's)")
        if self.flush_interval and (self.accumulator_bits == FLOAT32_BITS or self.flush_interval % STEP):
            given_too = f"flush_interval={self.flush_interval} with accumulator_bits={self.accumulator_bits}"
            raise ValueError(f"{given_too}; allowed: multiples of {STEP}, with less than {FLOAT32_BITS} bits")
        if self.cut_products and (self.accumulator_bits == FLOAT32_BITS or self.granularity not in ("tensor", "head")):
            given_too = f"accumulator_bits={self.accumulator_bits}, granularity={self.granularity}"
            raise ValueError(f"cut_products=True with {given_too}; allowed: below {FLOAT32_BITS}, tensor or head")
        if self.ds_by_half and self.granularity not in ("tensor", "head"):
            raise ValueError(f"ds_by_half=True with granularity={self.granularity}; allowed: tensor, head")
        if self.half_terms and self.accumulator_bits < FLOAT32_BITS:
            given_too = f"half_terms={self.half_terms} with accumulator_bits={self.accumulator_bits}"
            raise ValueError(f"{given_too}; allowed: one of them, as both say how P v is summed")

    @property
    def of_rows(self) -> "Policy":
        """The policy of what has a row for each query."""
        return replace(self, block=self.query_block) if self.query_block else self

    @property
    def formats(self) -> dict[str, str]:
        """The format of each place that is quantised."""
        return {place: word for place in PLACES if (word := getattr(self, place)) != NOT}

    @property
    def unit_roundoff(self) -> float:
        """The largest of all that is rounded here, of integer formats `of_tensor`; 0: nothing is. What is cut off after
        every 32 terms adds up until a flush; without one it counts for 2,048 terms. Where each of 32 products of one
        sign is cut, half of a last place is lost of each, relative to a sum that is half of the last one: about 8 last
        places for one. Of float16 sums, 4 roundings of a tile."""
        formats = [FORMATS[word].of_tensor for word in self.formats.values()]
        cuts = (self.flush_interval or 2048) // STEP * (8 if self.cut_products else 1)
        half = [4 * FORMATS["float16"].unit_roundoff] if self.half_terms else []
        cut = [cuts * 2.0 ** (1 - self.accumulator_bits)] if self.accumulator_bits < FLOAT32_BITS else []
        return max([0.0, *formats, *cut, *half])


def _all(word: str, **more: Any) -> Policy:
    """Every operand in one format."""
    return Policy(q=word, k=word, v=word, p=word, ds=word, do=word, **more)


def _whole(word: str, p_prescale: float) -> Policy:
    """Operands and results in one format, a scale a tensor: as experiments/fp8_fit found cuDNN 9.19 on an H200."""
    return _all(
        word, out=word, dq=word, dk=word, dv=word, p_prescale=p_prescale,
        accumulator_bits=14, cut_products=True, delta_of_cast=True, ds_by_half=True, dq_by_tile=True,
    )  # fmt: skip


def _flashinfer(word: str) -> Policy:
    """Forward alone; as its source has it. A tile has 192 keys at a head dim of 128, else 128."""
    return Policy(
        q=word, k=word, v=word, p=word, granularity="head", p_prescale=FORMATS[word].largest,
        accumulator_bits=14, cut_products=True, descending=True,
    )  # fmt: skip


_FP8 = _all("e4m3", p_prescale=256.0)
_HOPPER = replace(_FP8, accumulator_bits=14, cut_products=True)
POLICIES = {
    "none": Policy(),
    "fp8_tensor": _FP8,
    "fp8_no_prescale": replace(_FP8, p_prescale=1.0),
    "fp8_e5m2": _all("e5m2", p_prescale=256.0),
    "fp8_gradients_e5m2": replace(_FP8, do="e5m2", ds="e5m2"),
    "fp8_token": replace(_FP8, granularity="token"),
    "fp8_block": replace(_FP8, granularity="block"),
    "fp8_smooth": replace(_FP8, smooth_k=True),
    "fp8_hadamard": replace(_FP8, hadamard=True),
    "fp8_hopper": _HOPPER,
    "fp8_hopper_flush": replace(_HOPPER, flush_interval=128),  # DeepSeek-V3, arXiv 2412.19437
    "mxfp8": _all("e4m3", granularity="elements_32", scale_format="e8m0"),
    "nvfp4": _all("e2m1", granularity="elements_16", scale_format="e4m3"),
    "int8": _all("int8", granularity="block", p_prescale=0.0, smooth_k=True),
    "sage": Policy(
        q="int8", k="int8", v="float16", p="float16", granularity="block", query_block=128, half_terms=64, smooth_k=True
    ),
    "cudnn_e4m3": _whole("e4m3", 448.0),
    "cudnn_e5m2": _whole("e5m2", 57344.0),
    "flashinfer_e4m3": _flashinfer("e4m3"),
    "flashinfer_e5m2": _flashinfer("e5m2"),
}
"""By name. `sage` is SageAttention 1 (arXiv 2410.02367), whose backward is not quantised; `int8` is SageBwd's (arXiv
2505.11594) with dO as well; `cudnn_*` as the graph of cudnn_frontend/node/sdpa_fp8_bwd.h has it."""


def policy_of(name: str, **changes: Any) -> Policy:
    """A named policy with some fields changed; None changes nothing. Raises ValueError."""
    return replace(POLICIES[name], **{key: value for key, value in changes.items() if value is not None})


KERNELS = {"quantised": NOT, "cudnn_fp8": "cudnn_e4m3", "sage": "sage"}
"""Kernels that quantise, with the policy of each where none is named; `sage` is in a published table alone."""


@cache
def unit_roundoff(kernel: str, options: str) -> float:
    """That of a kernel's policy, from its name and options as the table has them; 0 for all other kernels, 1 where the
    policy is unknown."""
    if kernel not in KERNELS:
        return 0.0
    policy = policy_in(kernel, options)
    return 1.0 if policy is None else policy.unit_roundoff


@cache
def wire_roundoff(places: str) -> float:
    """That of wires of 8 bits, from the column `precision`; 0: there are none."""
    words = set(pairs_of(places).values()) & set(INPUT_FORMATS)
    return max([0.0, *(FORMATS[INPUT_FORMATS[word]].unit_roundoff for word in words)])


@cache
def policy_in(kernel: str, options: str) -> Policy | None:
    """A kernel's policy, from its name and options as the table has them; None where it quantises nothing or the policy
    is unknown."""
    if kernel not in KERNELS:
        return None
    given = pairs_of(options)
    kinds = {each.name: type(each.default) for each in fields(Policy)}
    read = {bool: lambda text: text == "True", int: int, float: float, str: str}
    try:
        changes = {name: read[kinds[name]](text) for name, text in given.items() if name in kinds}  # type: ignore[operator]
        return policy_of(given.get("policy", KERNELS[kernel]), **changes)
    except (KeyError, ValueError):  # a table of another version
        return None
