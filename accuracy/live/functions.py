"""Which functions compute attention, and how does each say what it computes? One `Function` for each way to call one.

`Function.settings` turns the bound arguments of a call into fields of `Facts` (mask, scale, ...) and a mask tensor.
`folded` makes of a score_mod of flex_attention what the reference and the limits know: numbers added to scores, and a
softcap. What any other function of a score loses by its own rounding nobody can say, so it has no limits.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accuracy.core.errors import ConfigError, one_line
from accuracy.runtime.arguments import NAMES, plain

SCORES = (1.0, -3.0, 0.37, 40.0)
CAPPED = 1e9
"""A score at which every softcap has its largest value."""
ROUNDINGS = 8
"""Of float32, by which numbers that are added may be off in float32: twice the spacing, half of it the sum's own."""
Arguments = Mapping[str, Any]
Settings = tuple[dict[str, Any], Tensor | None]
"""Fields of `Facts`, and a mask (B or 1, H or 1, Sq, S): seen, or added to scores."""
QKV = ("q", "k", "v")


@dataclass(frozen=True)
class Function:
    """path: `package.module:function`; tensors: its parameters that hold q, k and v, one name for packed ones;
    layout: of q, k and v, and of out; sharding: of the ranks in its argument `group`, "" where a call has whole
    sequences; by_document: each rank has a part of each document; parameters: of a function without a signature;
    mask: that of a call without a mask's word, "" where a function has a word for it."""

    path: str
    tensors: tuple[str, ...] = QKV
    layout: str = "bshd"
    out_layout: str = ""
    settings: Callable[[Arguments, Tensor, Tensor], Settings] = field(default=lambda arguments, q, k: ({}, None))
    sharding: str = ""
    group: str = "group"
    by_document: bool = False
    parameters: tuple[str, ...] = ()
    mask: str = ""

    @property
    def found(self) -> Any:
        """Return what it names in this process; None where its module is not imported."""
        module, _, name = self.path.partition(":")
        return getattr(sys.modules.get(module), name, None)

    @property
    def called_in(self) -> str:
        """Return the layout in which it is called."""
        packed = {} if self.layout == "thd" else {1: "qkvpacked", 2: "kvpacked"}
        return packed.get(len(self.tensors), self.layout)


def flash(arguments: Arguments, q: Tensor, k: Tensor) -> Settings:
    """flash-attn's words, which its descendants share: bottom-right masks, window_size, cu_seqlens, softcap."""
    window = tuple(arguments.get("window_size") or (-1, -1))
    lengths = [_lengths(arguments, name) for name in ("cu_seqlens_q", "cu_seqlens_k")]
    lengths = [each or _lengths(arguments, "cu_seqlens") for each in lengths]
    odd = [name for name in ("alibi_slopes", "block_table", "page_table", "qv") if arguments.get(name) is not None]
    return {
        "causal": bool(arguments.get("causal")),
        "scale": _scale(arguments, q, "softmax_scale"),
        "window": None if window in ((-1, -1), (None, None)) else tuple(None if x in (-1, None) else x for x in window),
        "documents": lengths[0],
        "documents_k": lengths[1] if lengths[1] != lengths[0] else (),
        "softcap": arguments.get("softcap") or None,
        "dropout": float(arguments.get("dropout_p") or 0.0),
        "note": f"{odd[0]} is not understood" if odd else "",
    }, None


def llama3(arguments: Arguments, q: Tensor, k: Tensor) -> Settings:
    """ring_flash_attn's llama3: a rank speaks of the documents of its own queries."""
    found, _ = flash(arguments, q, k)
    return found | {"documents_k": (), "begin": int(arguments["local_k_slice"].start)}, None


def sdpa(arguments: Arguments, q: Tensor, k: Tensor) -> Settings:
    """torch's: a causal mask is aligned at the top left."""
    found, mask = named(arguments, q, k)
    return found | {"top_left": True}, mask


def flex(arguments: Arguments, q: Tensor, k: Tensor) -> Settings:
    """flex_attention's: mask_mod and a score_mod that adds something become a mask; any other score_mod is a note."""
    found: dict[str, Any] = {"scale": _scale(arguments, q, "scale")}
    sizes = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
    block, change = arguments.get("block_mask"), arguments.get("score_mod")
    seen = None if block is None else everywhere(block.mask_mod, sizes, q.device)
    if change is None:
        return found, seen
    at = [everywhere(lambda *place, x=x: change(x, *place), sizes, q.device) for x in _few(q.device)]
    finite = at[0].isfinite()
    if any(not torch.allclose((x - at[0])[finite], by.expand_as(x)[finite], atol=1e-5) for x, by in
           zip(at[1:], _few(q.device)[1:], strict=True)):  # fmt: skip
        return found | {"note": "score_mod does more than add to scores"}, None
    added = at[0] if seen is None else at[0].masked_fill(~seen, -math.inf)
    return found, added if (added != 0).any() else None


def transformers(arguments: Arguments, q: Tensor, k: Tensor) -> Settings:
    """Of `eager_attention_forward` and of functions that somebody registered; without a mask these see all keys."""
    mask = arguments.get("attention_mask")
    odd = [name for name in ("position_bias", "cache") if arguments.get(name) is not None]
    sinks = arguments.get("s_aux")
    strange = mask is not None and (not isinstance(mask, Tensor) or mask.dim() != 4)
    module = arguments.get("module")
    return {
        "scale": _scale(arguments, q, "scaling"),
        "softcap": arguments.get("softcap") or None,
        "sinks": () if sinks is None else tuple(map(float, sinks.flatten().tolist())),
        "dropout": float(arguments.get("dropout") or 0.0) if getattr(module, "training", True) else 0.0,
        "note": f"{odd[0]} is not understood" if odd else "an attention_mask of its own kind" if strange else "",
    }, None if strange else _four(mask)


def transformer_engine(arguments: Arguments, q: Tensor, k: Tensor) -> Settings:
    """TransformerEngine's context-parallel entry."""
    word, window = str(arguments.get("attn_mask_type")), tuple(arguments.get("window_size") or (-1, -1))
    odd = {
        f"qkv_format={arguments.get('qkv_format')}": arguments.get("qkv_format") == "thd",
        f"attn_mask_type={word}": word not in ("causal", "no_mask", "causal_bottom_right"),
        f"softmax_type={arguments.get('softmax_type')}": arguments.get("softmax_type", "vanilla") != "vanilla",
        "attn_bias": arguments.get("attn_bias") is not None, "fp8": bool(arguments.get("fp8")),
    }  # fmt: skip
    found, _ = flash({**arguments, "causal": "causal" in word, "window_size": window}, q, k)
    note = next((f"{what} is not understood" for what, given in odd.items() if given), "")
    return found | {"documents": (), "documents_k": (), "note": note}, None


def named(arguments: Arguments, q: Tensor, k: Tensor) -> Settings:
    """A function of anyone's, by the usual words."""
    found, _ = flash(arguments, q, k)
    for word in ("causal", "is_causal"):
        found["causal"] = found["causal"] or bool(arguments.get(word))
    for word in ("softmax_scale", "sm_scale", "scaling", "scale"):
        if arguments.get(word) is not None:
            found["scale"] = float(arguments[word])
    words = "attention_mask", *NAMES["attn_mask"]
    masks = [arguments[word] for word in words if isinstance(arguments.get(word), Tensor)]
    found["note"] = found["note"] or ("two masks are not understood" if len(masks) > 1 else "")
    return found, _four(masks[0]) if masks else None


def _packed(path: str, layout: str = "bshd", **how: Any) -> list[Function]:
    """A function and its twins that take q, k and v, or k and v, in one tensor; `{}` stands for the twin's name."""
    kinds = (("", QKV), ("_qkvpacked", ("qkv",)), ("_kvpacked", ("q", "kv")))
    return [Function(path.format(kind), tensors, layout, **how) for kind, tensors in kinds]


SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_TE = "transformer_engine.pytorch.attention.dot_product_attention.context_parallel"
KNOWN = (
    Function("torch.nn.functional:scaled_dot_product_attention", SDPA[:3], "bhsd", settings=sdpa, parameters=SDPA),
    Function("torch.nn.attention.flex_attention:flex_attention", SDPA[:3], "bhsd", settings=flex, mask="full"),
    Function("transformers.integrations.flex_attention:compile_friendly_flex_attention", SDPA[:3], "bhsd",
             settings=flex),
    *_packed("flash_attn:flash_attn{}_func", settings=flash),
    *_packed("flash_attn:flash_attn_varlen{}_func", "thd", settings=flash),
    *(
        Function(f"{module}:flash_attn{kind}_func", layout=layout, settings=flash)
        for module in ("flash_attn_interface", "flash_attn.cute")
        for kind, layout in (("", "bshd"), ("_varlen", "thd"))
    ),
    *_packed("ring_flash_attn:ring_flash_attn{}_func", settings=flash, sharding="contiguous"),
    *_packed("ring_flash_attn:zigzag_ring_flash_attn{}_func", settings=flash, sharding="zigzag"),
    *_packed("ring_flash_attn:stripe_flash_attn{}_func", settings=flash, sharding="striped"),
    *_packed("ring_flash_attn:ring_flash_attn_varlen{}_func", "thd", settings=flash, sharding="contiguous",
             by_document=True),
    *_packed("ring_flash_attn:zigzag_ring_flash_attn_varlen{}_func", "thd", settings=flash, sharding="zigzag",
             by_document=True),
    *_packed("ring_flash_attn:llama3_flash_attn_varlen{}_func", "thd", settings=llama3, sharding="contiguous"),
    Function(f"{_TE}:attn_forward_func_with_cp", settings=transformer_engine, sharding="zigzag", group="cp_group"),
)  # fmt: skip
REGISTERED = Function("transformers", ("query", "key", "value"), "bhsd", "bshd", transformers)
"""In Hugging Face's registry. What that calls and `KNOWN` has is left to `KNOWN`, which knows its words."""


def known(fn: Any) -> Function | None:
    """Return what is known of a function of torch or of a package, also inside functools.partial and torch.compile, by
    where it is found; None of any other."""
    fn = plain(fn)
    return next((each for each in KNOWN if each.found is fn), None)


def _scale(arguments: Arguments, q: Tensor, name: str) -> float:
    given = arguments.get(name)
    return q.shape[-1] ** -0.5 if given is None else float(given)


def _lengths(arguments: Arguments, name: str) -> tuple[int, ...]:
    given = arguments.get(name)
    return () if given is None else tuple(int(x) for x in given.diff().tolist())


def _four(mask: Tensor | None) -> Tensor | None:
    """(B or 1, H or 1, Sq, S)."""
    return None if mask is None else mask[(None,) * (4 - mask.dim())]


def _few(device: torch.device) -> list[Tensor]:
    return [torch.tensor(x, device=device) for x in (0.0, 1.0, -3.0)]


def everywhere(modification: Callable[..., Tensor], sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Of each batch, head, query and key: (B, H, Sq, S)."""
    for number in range(len(sizes)):
        modification = torch.vmap(modification, in_dims=tuple(0 if n == 3 - number else None for n in range(4)))
    return modification(*(torch.arange(size, device=device) for size in sizes))


def folded(score_mod: Callable[..., Any], q: Tensor, k: Tensor, seen: Tensor | None = None) -> dict[str, Any]:
    """Return `attn_mask` and `softcap`, as far as there are any, that do the same to scores.

    Args:
        score_mod: (score, item, head, query, key) -> score, of 0-dimensional tensors, as flex_attention takes it.
        q, k: (B, Sq, H, D) and (B, S, Hk, D).
        seen: (B or 1, H or 1, Sq, S), True where a query sees a key, beside it.

    Raises:
        ConfigError: where it does anything else than add numbers to scores, to softcap tanh(score / softcap) or hide
            keys, or adds other numbers in float32 than in float64.
    """
    sizes = q.shape[0], q.shape[2], q.shape[1], k.shape[1]

    def at(score: float, dtype: torch.dtype = torch.float64) -> Tensor:
        given = torch.tensor(score, dtype=dtype, device=q.device)
        return everywhere(lambda *place: score_mod(given, *place) + 0 * given, sizes, q.device).double()

    try:
        added, capped, short = at(0.0), at(CAPPED), at(0.0, torch.float32)
        others = {score: at(score) for score in SCORES}
    except Exception as error:  # a function of anyone's
        wanted = "a function of score, item, head, query and key, 0-dimensional tensors"
        raise ConfigError(f"score_mod is not {wanted} ({one_line(error)})") from None
    finite = added.isfinite()
    least = (capped - added)[finite].min() if finite.any() else added.new_tensor(CAPPED)
    softcap = None if least > CAPPED / 2 else float(least)
    for score, x in others.items():
        plain = score if softcap is None else softcap * torch.tensor(score / softcap, dtype=torch.float64).tanh()
        off = ((x - added)[finite] - plain).abs()
        allowed = 1e-12 * (abs(score) + added[finite].abs())
        if (softcap is not None and softcap <= 0) or (off > allowed).any() or (x[~finite] != added[~finite]).any():
            raise ConfigError(
                "score_mod does more than add to scores, cap them by tanh or hide keys, and limits are known of these"
                " alone; say by softmax_scale= or softcap= what these can, or compare with your own float64"
            )
    most = ROUNDINGS * 2.0**-24 * added[finite].abs()
    if ((short - added)[finite].abs() > most).any() or (short.isfinite() != finite).any():
        raise ConfigError(
            "score_mod adds other numbers in float32 than in float64; give these as attn_mask=, and the function too"
        )
    found: dict[str, Any] = {} if softcap is None else {"softcap": softcap}
    visible = finite if seen is None else finite & seen
    if bool((added[finite] != 0).any()):
        return found | {"attn_mask": added.masked_fill(~visible, -torch.inf)}
    return found if bool(visible.all()) else found | {"attn_mask": visible}
