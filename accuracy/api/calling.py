"""How `assert_close` calls a function: in its layout and by its own words, and which attention these words mean.

The words are the field's: cu_seqlens of packed sequences, a BlockMask or mask_mod of flex_attention, whatever names a
function has for mask, scale and sinks (`accuracy.runtime.arguments`).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from accuracy.api.bounds import HOW, Attention, in_four, listed
from accuracy.api.returned import as_tensor, results
from accuracy.core.errors import ConfigError, one_line
from accuracy.live.functions import folded, known
from accuracy.runtime import arguments
from accuracy.runtime.arguments import NAMES, mask_names, parameters, plain, takes_any_word
from accuracy.runtime.layout import PACKED, canonical

BORDERS = ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_padded")
SCALES = {"q": "q_descale", "k": "k_descale", "v": "v_descale"}
CALLED = (*HOW, *BORDERS, "block_mask", "mask_mod", "score_mod", *SCALES.values())
"""Keywords that say which attention it is, where a function is called."""
ORDERS = {"bhsd": (0, 2, 1, 3), "sbhd": (1, 0, 2, 3)}
"""By layout, which of batch 0, token 1, head 2 and dim 3 each of its dimensions is."""
Borders = tuple[list[int], list[int]]
GRADIENTS = {"q": "dq", "k": "dk", "v": "dv", "sinks": "dsink", "attn_mask": "dbias"}


def in_bshd(x: Tensor, layout: str, name: str) -> Tensor:
    """Return (B, S, H, D), detached; lse as (B, H, Sq), dsink as (1, 1, H), dbias with four dimensions,
    max_logit as (B, H, Sq), (B, H, 1) or (1, H, 1)."""
    x = x.detach()
    if name == "dsink":
        return x.reshape(1, 1, -1)
    if name == "dbias":
        return in_four(x)
    if name == "max_logit" and (x.dim() == 1 or (x.dim() == 2 and layout not in PACKED)):
        return x.reshape(-1, x.shape[-1], 1)
    if name in ("lse", "dlse", "max_logit"):
        return x[None] if layout in PACKED and x.dim() == 2 else x
    return canonical(x, "thd" if layout in PACKED else layout) if x.dim() > 2 else x


def in_layout(values: Sequence[Any], layout: str, name: str) -> tuple[Any, ...]:
    """Return the sizes, or the words, of what `in_bshd` returns in the order of a layout."""
    if name in ("dsink", "dbias"):
        return tuple(values[-1:] if name == "dsink" else values)
    order = (0, 1, 2) if name in ("lse", "max_logit") else ORDERS.get(layout, (0, 1, 2, 3))
    return tuple(values[place] for place in order[layout in PACKED :])


def meant(x: Tensor, scale: Any, name: str, layout: str) -> Tensor:
    """Return what an 8-bit tensor, or one beside it, and its scale mean, in float64. x: (B, S, H, D); scale: a number,
    (B or 1, H or 1), of query heads or of those that share a key, or broadcast to all of x."""
    try:
        factor = torch.as_tensor(1.0 if scale is None else scale, device=x.device).double()
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"{SCALES[name]} is {scale!r}; give a number or a tensor") from None
    shown, heads = tuple(factor.shape), x.shape[2]
    if factor.dim():
        factor = factor[:, None, :, None] if factor.dim() == 2 else in_bshd(factor, layout, name)
    if factor.dim() == 4 and 1 < factor.shape[2] < heads and heads % factor.shape[2] == 0:
        factor = factor.repeat_interleave(heads // factor.shape[2], 2)
    try:
        return x.double() * factor.expand_as(x)
    except RuntimeError:
        fits = f"a number, a number for each item and head, or numbers that broadcast to {tuple(x.shape)}"
        raise ConfigError(f"{SCALES[name]} has the shape {shown}; give {fits}") from None


def described(how: Mapping[str, Any], q: Tensor, k: Tensor, layout: str, borders: Borders, fn: Any) -> dict[str, Any]:
    """Return the keywords of `Attention` for the field's words. q: (B, Sq, H, D); k: (B, S, Hk, D); borders: as
    `borders_of` returns them; fn: what is called: torch's own function aligns a causal mask at the first query."""
    found = {word: value for word, value in how.items() if word in HOW}
    if "dlse" in found:
        found["dlse"] = in_bshd(as_tensor(found["dlse"], "dlse"), layout, "dlse")
    masks = [word for word in ("attn_mask", "block_mask", "mask_mod") if word in how]
    if len(masks) > 1:
        raise ConfigError(f"{' and '.join(masks)} came; give one of them")
    if masks and masks != ["attn_mask"]:
        from torch.nn.attention.flex_attention import create_mask

        given, shape = how[masks[0]], (q.shape[0], q.shape[2])
        made, (items, heads) = getattr(given, "mask_mod", given), getattr(given, "shape", shape)[:2]
        try:
            found["attn_mask"] = create_mask(made, items, heads, q.shape[1], k.shape[1], str(q.device))
        except (TypeError, AttributeError, AssertionError) as error:
            wanted = "a function of item, head, query and key" if masks == ["mask_mod"] else "a BlockMask"
            raise ConfigError(f"{masks[0]} is not {wanted} ({one_line(error)})") from None
    if "score_mod" in how:
        if clash := next((word for word in ("attn_mask", "softcap", "rows") if word in how), None):
            raise ConfigError(f"score_mod came with {clash}; put both into score_mod, or leave one of them away")
        found |= folded(how["score_mod"], q, k, found.pop("attn_mask", None))
    if plain(fn) is scaled_dot_product_attention and found.get("causal") and q.shape[1] != k.shape[1]:
        if "attn_mask" in found:
            raise ConfigError(
                f"{[*masks, 'score_mod'][0]} came with causal=True for other numbers of keys; put both into one mask"
            )
        found |= {"causal": False, "attn_mask": q.new_ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()}
    of_queries, of_keys = borders
    if of_queries and "documents" in how:
        raise ConfigError("documents came with cu_seqlens; give one of them")
    if "cu_seqlens_padded" in how:  # what pads a document is one of its own, whose rows are not compared
        pairs = [*itertools.pairwise(listed(how["cu_seqlens_padded"]) or [])]
        ends = [begin + b - a for (begin, _), (a, b) in zip(pairs, itertools.pairwise(of_queries), strict=True)]
        cuts = [(begin, last, end) for (begin, end), last in zip(pairs, ends, strict=True)]
        found["documents"] = [x for begin, last, end in cuts for x in (last - begin, end - last) if x]
        real = {row for begin, last, _ in cuts for row in range(begin, last)}
        found["rows"] = [row for row in listed(how.get("rows", range(q.shape[1]))) or [] if row in real]
    elif of_queries == of_keys and of_queries:
        found["documents"] = [end - begin for begin, end in itertools.pairwise(of_queries) if end > begin]
    elif of_queries:
        if unclear := [word for word in (*masks, "score_mod", "window") if word in how]:
            raise ConfigError(f"{unclear[0]} came where queries and keys are packed otherwise; leave one of them away")
        found["attn_mask"] = _of_packed(of_queries, of_keys, bool(found.pop("causal", False)), q.device)
    return found


def borders_of(how: Mapping[str, Any], queries: int, keys: int, layout: str) -> Borders:
    """Return where packed sequences begin and end; two empty lists where nothing is packed. Raises ConfigError."""
    named = [word for word in BORDERS if word in how]
    if not named:
        return [], []
    found, padded = [], BORDERS[3] in how
    for word, total in ((BORDERS[1], queries), (BORDERS[2], keys), *([(BORDERS[3], queries)] if padded else [])):
        given = how.get(word, how.get("cu_seqlens"))
        if given is None:
            raise ConfigError(f"{named[0]} came without {word}; give both")
        borders = listed(given) or []
        ends = borders[-1:] == [total] or (padded and word != BORDERS[3])
        right = borders[:1] == [0] and ends and borders == sorted(borders)
        if not right or {*map(type, borders)} != {int}:
            shown = borders or " ".join(repr(given).split())
            raise ConfigError(f"{word}={shown}; allowed: numbers that rise from 0 to the number of tokens, {total}")
        found.append(borders)
    if len(found[0]) != len(found[1]):
        raise ConfigError(f"cu_seqlens_q has {len(found[0])} numbers and cu_seqlens_k {len(found[1])}; give as many")
    if padded:
        lengths, longer = ([end - begin for begin, end in itertools.pairwise(each)] for each in found[1:])
        if found[0] != found[1] or [*map(max, lengths, longer)] != longer:
            raise ConfigError(f"cu_seqlens_padded={found[2]}; allowed: those of as many documents, none shorter")
    return found[0], found[1]


def _of_packed(of_queries: Sequence[int], of_keys: Sequence[int], causal: bool, device: torch.device) -> Tensor:
    """Return the mask (Sq, S) of packed sequences with other numbers of queries than keys; causal: at their ends."""
    seen = torch.zeros(of_queries[-1], of_keys[-1], dtype=torch.bool, device=device)
    for (begin, end), (first, last) in zip(itertools.pairwise(of_queries), itertools.pairwise(of_keys), strict=True):
        own = torch.ones(end - begin, last - first, dtype=torch.bool, device=device)
        seen[begin:end, first:last] = own.tril(own.shape[1] - own.shape[0]) if causal else own
    return seen


def untold(fn: Callable[..., Any], how: Mapping[str, Any]) -> list[str]:
    """Return which words of `how` a function has no parameter for."""
    known = parameters(fn) or {}
    names: dict[str, tuple[str, ...]] = NAMES | dict.fromkeys(BORDERS[:3], NAMES["cu_seqlens"])
    names |= {"mask_mod": ("mask_mod", "block_mask")}
    told = [word for word in how if word != "dlse" and not {*names.get(word, (word,))} & {*known}]
    return [] if takes_any_word(known) else told


def is_bias(mask: Any) -> bool:
    """Return whether it is a tensor of numbers that are added to the scores."""
    return isinstance(mask, Tensor) and mask.is_floating_point()


def with_float64(tensors: list[Any], found: dict[str, Tensor], attention: Attention) -> tuple[Any, ...]:
    """Return them on the processor where their device has no float64, as Apple's MPS has none."""
    try:
        tensors[0][:0].double()
    except (TypeError, RuntimeError):
        own: dict[str, Any] = {name: x.cpu() for name, x in vars(attention).items() if isinstance(x, Tensor)}
        moved = [None if x is None else x.cpu() for x in tensors]
        return moved, {name: x.cpu() for name, x in found.items()}, replace(attention, **own)
    return tensors, found, attention


def defaults(fn: Any) -> dict[str, Any]:
    """Return the mask and the scale that a function has by its signature, where it says one."""
    known = parameters(fn) or {}
    kinds = {"causal": bool, "softmax_scale": float}
    found = {word: known[name].default for word in kinds for name in NAMES[word] if name in known}
    return {word: value for word, value in found.items() if type(value) is kinds[word]}


def _words(fn: Callable[..., Any], q: Tensor, k: Tensor, how: Mapping[str, Any], borders: Borders) -> dict[str, Any]:
    """Return what of `how` the function has a parameter for, by its own names; our defaults only for parameters that
    have none. q: (B, Sq, H, D); k: (B, S, Hk, D)."""
    known = parameters(fn) or {}
    told = {word: value for word, value in how.items() if word not in ("dlse", *BORDERS)}
    if q.shape[2] != k.shape[2] and {*NAMES["grouped"]} & {*known}:
        told["grouped"] = True
    if "mask_mod" in how and "mask_mod" not in known and "block_mask" in known:
        from torch.nn.attention.flex_attention import create_block_mask

        sizes = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
        told["block_mask"] = create_block_mask(told.pop("mask_mod"), *sizes, str(q.device))
    of_queries, of_keys = borders
    if of_queries:
        told |= _packed(of_queries, q.device)
        if BORDERS[3] in how:
            told[BORDERS[3]] = torch.as_tensor(how[BORDERS[3]], dtype=torch.int32, device=q.device)
    if told.get("window") is not None and (form := arguments.window_forms(known)[:1]):
        told["window"] = arguments.window_told(form[0], told["window"], bool(told.get("causal")))
    values = {"causal": False, "softmax_scale": q.shape[-1] ** -0.5, "group": None, **told}
    masks = mask_names(known, is_bias(told.get("attn_mask")))
    every = NAMES | {"attn_mask": tuple(masks[:1])}
    found = {name: (word, known[name]) for word, names in every.items() for name in names if name in known}
    taken = {
        name: values[word] for name, (word, each) in found.items()
        if word in told or (word in values and each.default is each.empty)
    }  # fmt: skip
    if of_queries:
        own = _packed(of_keys, q.device)
        taken |= {name: own[word] for word, names in arguments.OF_KEYS.items() for name in names if name in taken}
    renamed, any_word = {word for word, _ in found.values()}, takes_any_word(known)
    same = {word: value for word, value in told.items() if word not in renamed and (word in known or any_word)}
    return same | taken


def _packed(borders: Sequence[int], device: torch.device) -> dict[str, Any]:
    lengths = [end - begin for begin, end in itertools.pairwise(borders)]
    return {"cu_seqlens": torch.tensor(borders, dtype=torch.int32, device=device), "max_seqlen": max(lengths)}


def called(
    fn: Callable[..., Any], layout: str, inputs: Mapping[str, Tensor | None], how: Mapping[str, Any],
    borders: Borders, dlse: Tensor | None,
) -> dict[str, Tensor]:  # fmt: skip
    """Return a function's results and, with dout, its gradients. inputs: q, k, v, dout in its layout; dlse: (B, H,
    Sq)."""
    given, dout = {name: x for name, x in inputs.items() if x is not None and name != "dout"}, inputs["dout"]
    q, k = (in_bshd(given[name], layout, name) for name in ("q", "k"))
    words = _words(fn, q, k, how, borders)
    own = {word: next((name for name in NAMES[word] if name in words), "") for word in ("sinks", "attn_mask")}
    if own["sinks"] and is_bias(words[own["sinks"]]):
        given["sinks"] = words[own["sinks"]]
    if own["attn_mask"] and isinstance(how["attn_mask"], Tensor):
        given["attn_mask"] = how["attn_mask"]
    asked = [name for name, x in given.items() if dout is not None and (name != "attn_mask" or x.requires_grad)]
    few = getattr(known(fn), "tensors", "qkv")
    stacked_from = {"kvpacked": 1, "qkvpacked": 0}.get(layout, len(few) - 1 if len(few) < 3 else 3)
    stacked = "qkv"[stacked_from:]
    if len({given[name].shape for name in stacked}) > 1:
        raise ConfigError(f"layout={layout} came with unlike shapes of {', '.join(stacked)}; give one shape")
    if dout is not None and not own["attn_mask"] and getattr(how.get("attn_mask"), "requires_grad", False):
        raise ConfigError("attn_mask wants a gradient and the function does not get it; give attn_mask.detach()")
    with torch.inference_mode(False), torch.enable_grad():
        leaves = {name: x.detach().clone().requires_grad_(name in asked) for name, x in given.items()}
        versions = {name: x._version for name, x in leaves.items()}
        words |= {own[name]: leaves[name] for name in own if name in leaves}
        tensors = [leaves[name] for name in "qkv"[:stacked_from]]
        tensors += [torch.stack([leaves[name] for name in stacked], -3)] if stacked else []
        try:
            found = results(fn(*tensors, **words))
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # it was called
                raise
            raise ConfigError(f"the function was given {', '.join(words) or 'no words'}: {error}") from None
    if written := [name for name, x in leaves.items() if x._version > versions[name]]:
        raise AssertionError(f"the function wrote to its inputs {', '.join(written)}; it must leave them as they are")
    return found if dout is None else _with_gradients(found, [leaves[name] for name in asked], asked, dout, dlse)


def _with_gradients(
    found: dict[str, Tensor], wanted: list[Tensor], names: list[str], dout: Tensor, dlse: Tensor | None
) -> dict[str, Tensor]:
    """Return what a function gave, detached, and the gradients of what is wanted, if out and lse have the right
    shape."""
    if not found["out"].requires_grad:
        raise ConfigError("the function's out has no gradient; leave dout= away, or compare dq=, dk=, dv= of your own")
    losses = {"out": dout}
    if dlse is not None:
        if "lse" not in found:
            raise ConfigError("dlse came, and the function returns no lse; return (out, lse), or leave dlse away")
        if found["lse"].requires_grad:  # else it has no gradient, which is for the limits to say
            losses["lse"] = (dlse[0] if found["lse"].dim() == 2 else dlse).to(found["lse"].dtype)
    if any(found[name].shape != x.shape for name, x in losses.items()):
        return found
    given_back = [found[name] for name in losses]
    gradients = torch.autograd.grad(given_back, wanted, [*losses.values()], materialize_grads=True)
    return {name: x.detach() for name, x in found.items()} | dict(
        zip((GRADIENTS[each] for each in names), gradients, strict=True)
    )
