"""A mistake in a call is one line that says what is allowed, before any work and before a function is called."""

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import accuracy
from accuracy import ConfigError
from tests.strangers import attend, tensors

SMALL = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 16, "device": "cpu", "progress": False}
BORDERS, PACKED = [0, 30, 30, 96], {"layout": "thd", "cu_seqlens": [0, 30, 30, 96]}
Q, K, V, DOUT = tensors(queries=96, keys=96, batch=1)
OUT, MASK, SHORT = torch.zeros(96, 4, 16), torch.ones(96, 96, dtype=torch.bool), torch.float8_e4m3fn
EIGHT_BITS = {"q": Q.to(SHORT), "k": K.to(SHORT), "v": V.to(SHORT)}
META = torch.zeros(96, 2, 16, device="meta")


def never(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Any = None, attn_mask: Any = None, causal: Any = None) -> Any:
    raise AssertionError("called")


def values(name: str, *wrong: object) -> list[tuple[str, dict[str, Any]]]:
    return [(name, {name: each}) for each in wrong]


OF_TENSORS: list[tuple[str, dict[str, Any]]] = [
    *values("causal", "full", [True]), *values("softmax_scale", "0.1", 0), *values("softcap", -1), *values("pieces", 0),
    *values("window", "a", -1, (3, 0)), *values("documents", [5, 5], [8.0]), *values("sinks", [1.0], torch.zeros(2)),
    ("policy 'loose' is unknown", {"policy": "loose"}), ("layout 'hsd' is unknown.*bhsd", {"layout": "hsd"}),
    ("gradients need dout", {"actual": Q, "dq": torch.zeros(1)}), ("a NoneType came", {"actual": None}),
    ("does not fit q", {"k": torch.zeros(1, 96, 3, 16)}), ("does not fit k", {"v": V[:, :4]}),
    ("give one dtype of", {"v": V.int()}), ("q is a str, expected a tensor", {"q": "q"}),
    ("q has 6,144 values not finite", {"q": Q * math.nan}), (".", {"dout": Q[:, :4]}),
    ("did you mean causal", {"is_causal": True}), ("did you mean softmax_scale", {"sm_scale": 0.3}),
    ("k is on meta and q on cpu; put them on one device", {"k": META[None]}),
    # documents
    ("rise from 0 to the number of tokens, 96", {**PACKED, "cu_seqlens": [0, 40]}),
    ("cu_seqlens_q='0,96'; allowed", {**PACKED, "cu_seqlens": "0,96"}), ("'thd'", {**PACKED, "layout": "bhsd"}),
    ("without cu_seqlens_k", {"layout": "thd", "cu_seqlens_q": BORDERS}),
    ("give as many", {"layout": "thd", "cu_seqlens_q": BORDERS, "cu_seqlens_k": [0, 96]}),
    ("none shorter", {**PACKED, "cu_seqlens_padded": [0, 20, 60, 96]}),
    ("window came", {**PACKED, "cu_seqlens_k": [0, 20, 40, 96], "window": 3}),
    ("give one of them", {**PACKED, "documents": [30, 66]}), ("lengths whose sum", {"layout": "thd", "documents": 96}),
    ("rows came as slice", {**PACKED, "actual": OUT, "rows": slice(3)}),
    ("from 0 to 95", {"actual": Q, "rows": range(1, 97)}),
    # masks, biases and functions of scores
    (r"has the shape \(95, 96\).*\(1, 4, 96, 96\)", {"attn_mask": MASK[1:]}), ("int64", {"attn_mask": MASK.long()}),
    ("hides all keys of some query", {"actual": Q, "attn_mask": MASK & False}),
    ("a key is hidden by -inf", {"attn_mask": MASK / 0.0}), ("block_mask is not a BlockMask", {"block_mask": 3}),
    ("give one of them", {"mask_mod": lambda b, h, i, j: i >= j, "attn_mask": MASK}),
    ("of item, head, query and key", {"mask_mod": lambda query, key: query >= key}),
    *(
        ("score_mod", {"score_mod": each})
        for each in (
            3, lambda s, b, h, q, k: s * (1 + h), lambda s, b, h, q, k: s + 0.1 * s.square(),
            lambda s, b, h, q, k: s.relu(), lambda s, b, h, q, k: torch.where(s > 2, s, 0.0),
            lambda s, b, h, q, k: s * math.nan, lambda s, b, h, q, k: s + (1e4 + 0.3 * s.new_ones(()) - 1e4),
        )
    ),
    ("score_mod", {"score_mod": lambda s, b, h, q, k: s + h, "softcap": 3.0}),
    (r"dlse came as \(1, 1, 96\); .* \(1, 4, 96\)", {"dlse": torch.ones(1, 1, 96), "dout": DOUT}),
    ("dbias came without a bias", {"actual": Q, "dout": DOUT, "dbias": MASK}),
    ("does not get it", {"actual": lambda q, k, v: attend(q, k, v), "dout": DOUT,
                         "attn_mask": torch.zeros(96, 96, requires_grad=True)}),
    ("returns no lse", {"actual": lambda q, k, v: attend(q, k, v)[0], "dout": DOUT, "dlse": torch.ones(1, 4, 96)}),
    ("4 values came", {"actual": (Q, *[torch.zeros(1, 4, 96)] * 3)}),
    # 8 bits
    ("q_descale is 'a'; give a number", {"q_descale": "a"}),
    (r"k_descale has the shape \(3, 5\)", EIGHT_BITS | {"k_descale": torch.ones(3, 5)}),
    ("gradients are not known", EIGHT_BITS | {"dout": DOUT, "k_descale": 1.0}),
]  # fmt: skip


def test_assert_close_refuses_a_value_that_cannot_be() -> None:
    for says, how in OF_TENSORS:
        packed = how.get("layout") == "thd"
        given = {name: x[0] if packed else x for name, x in zip("qkv", (Q, K, V), strict=True)}
        with pytest.raises(ConfigError, match=says) as caught:
            accuracy.assert_close(**{"actual": never} | given | how)
        assert "\n" not in str(caught.value), how


def attention(q, k, v, *, causal, softmax_scale, group, window_size=(-1, -1), softcap=0.0):
    """Takes flash-attn's words; it is not called."""
    raise AssertionError("called")


def masked(q, k, v, *, softmax_scale, bias):
    return attend(q, k, v, scale=softmax_scale, bias=bias)[0]


def with_sinks(q, k, v, *, causal, softmax_scale, s_aux):
    raise AssertionError("called")


def holding() -> Any:
    """A function that no other process can have."""
    lock = threading.Lock()
    return lambda q, k, v, *, causal, softmax_scale, group: lock


def alibi(batch: int, heads: int, queries: int, keys: int) -> Tensor:
    return torch.zeros(heads, queries, keys)


def mine(**how: Any) -> Any:
    return accuracy.measure(attention, **SMALL | how)


def under(hidden: object = None, fn: Any = masked, **how: Any) -> Any:
    return accuracy.measure(fn, **SMALL | how | ({} if hidden is None else {"attn_mask": hidden}))


SQUARE = torch.ones(64, 64)
OF_PROBLEMS: list[tuple[str, Callable[[], object]]] = [
    ("did you mean causal", lambda: accuracy.bounds(Q, K, V, casual=True)),
    ("between 0 and 1", lambda: accuracy.bounds(Q, K, V)["out"].likely(2)),
    ("dlse came without dout", lambda: accuracy.bounds(Q, K, V, dlse=torch.zeros(1, 4, 96))),
    (r"^argument of \w+ 'layer' is unknown; allowed: ", lambda: accuracy.capture(None, "x", layer="*")),
    ("every=0; allowed: a whole number from 1", lambda: accuracy.capture(None, "x", every=0)),
    ("layout='bsdh'; allowed: bshd, bhsd, sbhd, thd", lambda: accuracy.capture(None, "x", layout="bsdh")),
    ("sharding='ring'; allowed: None, contiguous", lambda: accuracy.capture(None, "x", sharding="ring")),
    ("nobody:knows cannot be loaded", lambda: accuracy.capture(None, "x", functions=["nobody:knows"])),
    (r"^argument of \w+ 'layer' is unknown; allowed: ", lambda: accuracy.judge("x", layer="*")),
    (r"^argument of \w+ 'c' is unknown; allowed: ", lambda: accuracy.compare("a", c="b")),
    (r"^argument of \w+ 'tensors' is unknown; allowed: ", lambda: accuracy.plot.growth(None, tensors="out")),
    (r"^argument of \w+ 'head_kv' is unk", lambda: accuracy.tolerance((1, 2, 3, 4), "bfloat16", head_kv=2)),
    ("no folder", lambda: accuracy.load(3)), ("int is no table", lambda: accuracy.compare(3, 4)),
    ("3 is no function", lambda: accuracy.assert_accurate(3)), ("is no function", lambda: accuracy.from_jax(3)),
    ("3 names no function", lambda: accuracy.measure({3: attention})),
    ("output_dir=3 is no folder", lambda: mine(output_dir=3)), ("did you mean bfloat16", lambda: mine(dtype="bfloat")),
    ("did you mean zigzag", lambda: accuracy.measure("zig_zag")), ("nothing to measure", lambda: accuracy.measure([])),
    ("two are called ring", lambda: accuracy.measure(["ring", "ring"])),
    ("another_name", lambda: accuracy.measure({"single_device": attention})),
    ("did you mean seqlen", lambda: mine(seqln=3)), ("gaussian", lambda: mine(inputs="nothing")),
    ("contiguous", lambda: mine(sharding="spiral")), ("world_size=0", lambda: mine(world_size=0)),
    ("limits=1.5", lambda: accuracy.assert_accurate(attention, limits=1.5)),
    ("softcap", lambda: accuracy.assert_accurate(lambda q, k, v, *, softcap: q, **SMALL)),
    ("drop them", lambda: accuracy.drift("ring@2", "single_device", layout="bhsd")),
    ("drop them", lambda: accuracy.invariance("ring@2", batchmates=2, sharding="zigzag")),
    ("sinks is a tensor; give a number", lambda: mine(sinks=torch.zeros(4))),
    ("has no attention sinks", lambda: mine(sinks=0.5)), ("give sinks=", lambda: accuracy.measure(with_sinks, **SMALL)),
    ("did you mean mask", lambda: mine(is_causal=True)),
    ("cannot go to the processes of its ranks", lambda: accuracy.measure(holding(), world_size=2, **SMALL)),
    (".", lambda: accuracy.drift([], "eager", **SMALL)), (".", lambda: accuracy.attribute(attention, "zigzag@2")),
    # masks
    (r"\(64, 60\)", lambda: under(torch.ones(64, 60))), ("raised", lambda: under(lambda x: x)),
    ("hides all keys", lambda: under(SQUARE < 0)), ("nan", lambda: under(SQUARE * math.nan)),
    ("hides all", lambda: under(SQUARE.bool().triu(1).roll(1, 0), mask="causal")),
    ("attn_mask", lambda: mine(attn_mask=alibi)), ("attn_mask", lambda: under(alibi, "ring")),
    ("kernel=eager", lambda: under(SQUARE.clone().requires_grad_(), kernel="torch_flash")),
]  # fmt: skip


def test_entries_that_measure_refuse_what_they_do_not_know() -> None:
    for says, call in OF_PROBLEMS:
        with pytest.raises(ConfigError, match=says) as caught:
            call()
        assert "\n" not in str(caught.value), says


def weighted(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    return (lses.softmax(0).mT[..., None] * outs).sum(0), lses.logsumexp(0)


def test_assert_merge_close_says_what_cannot_be_merged() -> None:
    outs = torch.randn(3, 2, 8, 3, 16, generator=torch.Generator().manual_seed(0))
    lses = torch.zeros(3, 2, 3, 8)
    hidden = lses.index_fill(0, torch.tensor([1]), -math.inf)
    merges: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((weighted, outs, lses.mT), {}, "of these partial_outs it is"),
        ((weighted, outs, lses + math.inf), {}, "flash-attn 2 writes inf"),
        ((weighted, outs.masked_fill(hidden.mT[..., None] < 0, math.nan), lses), {}, "not finite where their lse is"),
        ((weighted, None, lses), {}, "partial_outs must be a tensor"),
        ((lambda *given: None, outs, lses), {}, "no merge"),
        ((weighted, outs[0, 0], lses[0, 0]), {}, "N, ..., S, H, D"),
        ((weighted, outs, lses.to("meta")), {}, "partial_lses is on meta and partial_outs on cpu"),
        ((weighted, [outs[0], outs[1].to("meta")], lses), {}, "of one shape on one device"),
        ((outs[0].to("meta"), outs, lses), {}, "out is on meta"),
        ((np.zeros(3), outs, lses), {}, "ndarray is no merge"),
        ((weighted, outs, lses), {"sinks": [0.0]}, r"sinks are a list; of \d heads give a tensor"),
        ((weighted, outs, lses), {"base": 10}, r"allowed: math\.e, 2"),
    ]  # fmt: skip
    for given, how, says in merges:
        with pytest.raises(ConfigError, match=says):
            accuracy.assert_merge_close(*given, **how)
