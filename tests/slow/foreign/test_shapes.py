"""A kernel may be compiled anew for each shape, dtype, mask and scale: a function of one rank meets few of them."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.core.case import Problem
from accuracy.execute.ask import with_answers
from accuracy.execute.plan import plan
from tests.slow.foreign.functions import eager
from tests.strangers import attend


class Planned(Exception):
    """Raised in place of the sweep; it holds the planned cases and those that were refused."""


CALLED: set[tuple[object, ...]] = set()


def of_any_dtype(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    sizes = len(q), k.shape[1], q.shape[2], k.shape[2], q.shape[3]
    CALLED.add((*sizes, str(q.dtype).removeprefix("torch."), causal, round(softmax_scale, 6)))
    return eager(q, k, v, causal=causal, softmax_scale=softmax_scale)[0]


def but_not(refused: Callable[[Tensor, Tensor, bool, float], bool]) -> Callable[..., Tensor]:
    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
        if refused(q, k, causal, softmax_scale):
            raise RuntimeError("not supported")
        return of_any_dtype(q, k, v, causal=causal, softmax_scale=softmax_scale)

    return attention


of_tiles = but_not(lambda q, k, causal, scale: (
    q.element_size() != 2 or q.shape[3] not in (64, 128) or q.shape[1] % 128 > 0 or not causal))  # fmt: skip
of_one_key_head = but_not(lambda q, k, causal, scale: k.shape[2] != 1 or q.shape[3] != 128)
of_eight_heads = but_not(lambda q, k, causal, scale: q.shape[2] % 8 > 0)
of_four_heads = but_not(lambda q, k, causal, scale: q.shape[2] < 4)
of_as_many_key_heads = but_not(lambda q, k, causal, scale: k.shape[2] != q.shape[2])


def of_one_mask(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float) -> Tensor:
    """Unmasked attention that refuses float64 and head dims below 16, as compiled flex_attention does on a GPU."""
    if q.dtype == torch.float64 or q.shape[3] < 16:
        raise RuntimeError("not supported")
    return of_any_dtype(q, k, v, causal=False, softmax_scale=softmax_scale)


def of_no_scale(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float | None = None) -> Tensor:
    if softmax_scale is not None:
        raise ValueError("softmax_scale is not supported")
    return of_any_dtype(q, k, v, causal=causal, softmax_scale=q.shape[3] ** -0.5)


@pytest.mark.parametrize(("function", "how", "most", "refused"), [
    (of_tiles, {}, 35, {*(f"head_dim={dim}" for dim in (8, 16, 24, 32, 40)), "mask=full",
                                *(f"seqlen={length}" for length in (40, 43, 48, 96, 192))}),
    *(pytest.param(*each, marks=pytest.mark.stress) for each in (
    (of_as_many_key_heads, {}, 65, {"heads_kv=2"}),
    (of_one_mask, {"mask": "full"}, 30, {"head_dim=8"}),
    (of_one_key_head, {}, 60, {*(f"head_dim={dim}" for dim in (8, 16, 24, 32, 40, 64)), "heads_kv=2"}),
    (of_no_scale, {}, 60, {"softmax_scale=0.2"}),
    (of_eight_heads, {}, 60, {"heads=2", "heads=4"}),
    (of_four_heads, {}, 60, {"heads=2"}),
    )),
])  # fmt: skip
def test_a_function_meets_few_shapes_and_is_asked_what_it_refuses(
    function: Callable[..., Tensor], how: dict[str, str], most: int, refused: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it is asked in are those of the sweep, but for one or two."""
    CALLED.clear()
    cases, not_taken = planned(function, monkeypatch, **how)
    assert {str(each.unsupported).removeprefix("not taken: ").partition(" ")[0] for each in not_taken} == refused
    assert len(cases) >= 40
    grouped = any(1 < each.problem.heads_kv < each.problem.heads for each in cases)
    assert grouped != ("heads_kv=2" in refused)
    assert any(each.problem.seqlen > 32_768 for each in cases) == (
        function not in (of_tiles, of_eight_heads, of_four_heads)
    )
    sweep = {(*sizes(each.problem), each.dtype, each.problem.causal, each.problem.softmax_scale) for each in cases}
    every = CALLED | {(*each[:-1], round(each[-1], 6)) for each in sweep}
    assert len(every) <= most, sorted(every)


def planned(function: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch, **how: Any) -> Any:
    def raising(*asking: Any) -> NoReturn:
        configuration, not_taken = with_answers(*asking)
        raise Planned([each.case for each in plan(configuration, None, 1) if each.unsupported is None], not_taken)

    monkeypatch.setattr("accuracy.api.measure.with_answers", raising)
    with pytest.raises(Planned) as found:
        accuracy.diagnose(function, world_size=1, device="cpu", progress=False, **how)
    return found.value.args


def test_packed_sequences_are_not_asked_with_fewer_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    def packed(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, max_seqlen: int, **how: Any) -> Tensor:
        borders = itertools.pairwise(cu_seqlens.tolist())
        parts = ([x[None, begin:end] for x in (q, k, v)] for begin, end in borders)
        return torch.cat([of_any_dtype(*part, **how)[0] for part in parts])

    small: dict[str, Any] = {"seqlen": 64, "heads": 2, "heads_kv": 1, "head_dim": 16}
    cases, _ = planned(packed, monkeypatch, layout="thd", **small)
    assert any(each.problem.documents for each in cases)
    assert not any(each.problem.seqlen_q for each in cases)


@pytest.mark.stress(3, "form")
@pytest.mark.parametrize(("form", "more"), [("pair", 0), ("behind", 0), ("keys", -1), ("behind", 2)])
def test_a_window_without_a_default_is_told_always_and_a_number_counts_a_query_s_own_key_or_not(
    form: str, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of two too many is neither, and wrong. Those that are not behind alone have a default."""

    def windowed(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, window_size: Any) -> Tensor:
        behind = window_size[0] if form == "pair" else window_size
        past = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(-behind - more - 1) & (behind >= 0)
        return attend(q, k, v, causal=causal, scale=softmax_scale, bias=~past, wide=torch.float32)[0]

    def with_default(*tensors: Tensor, causal: bool, softmax_scale: float, window_size: int | None = None) -> Tensor:
        fn = of_any_dtype if window_size is None else partial(windowed, window_size=window_size)
        return fn(*tensors, causal=causal, softmax_scale=softmax_scale)

    small: dict[str, Any] = {"seqlen": 32, "heads": 2, "heads_kv": 1, "head_dim": 16, "dtype": "float32"}
    cases, _ = planned(with_default if more else windowed, monkeypatch, **small)
    assert {dict(each.variant.options)["window"] for each in cases} == {form}
    assert {each.problem.window for each in cases} == {None, 10}
    monkeypatch.undo()
    if more == 2:
        assert accuracy.measure(with_default, window=10, seqlen=32, device="cpu")["error_rel"].max() > 0.1


def sizes(problem: Problem) -> tuple[int, ...]:
    return problem.batch, problem.seqlen, problem.heads, problem.heads_kv, problem.head_dim
