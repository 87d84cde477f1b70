"""A kernel may be compiled anew for each shape, dtype, mask and scale: a function of one rank meets few of them."""

from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.core.case import Problem
from accuracy.execute.ask import with_answers
from accuracy.execute.plan import plan
from tests.slow.foreign.functions import visible


class Planned(Exception):
    """Raised in place of the sweep; it holds the planned cases and those that were refused."""


CALLED: set[tuple[object, ...]] = set()


def of_any_dtype(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Attention that remembers what it was called with."""
    sizes = len(q), k.shape[1], q.shape[2], k.shape[2], q.shape[3]
    CALLED.add((*sizes, str(q.dtype).removeprefix("torch."), causal, round(softmax_scale, 6)))
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2).transpose(1, 2) for x in (k, v))
    scores = q.transpose(1, 2).float() @ k.float().mT * softmax_scale
    return ((visible(scores) if causal else scores).softmax(-1) @ v.float()).transpose(1, 2).to(q.dtype)


def but_not(refused: Callable[[Tensor, Tensor, bool], bool]) -> Callable[..., Tensor]:
    """Attention that raises where something holds of q, k and causal."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
        if refused(q, k, causal):
            raise RuntimeError("not supported")
        return of_any_dtype(q, k, v, causal=causal, softmax_scale=softmax_scale)

    return attention


of_16_bits = but_not(lambda q, k, causal: q.element_size() != 2)  # as flash-attn
of_tiles = but_not(lambda q, k, causal: (
    q.element_size() != 2 or q.shape[3] not in (64, 128) or q.shape[1] % 128 > 0 or not causal))  # fmt: skip
of_one_key_head = but_not(lambda q, k, causal: k.shape[2] != 1 or q.shape[3] != 128)


def of_one_mask(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float) -> Tensor:
    """Unmasked attention that refuses float64 and head dims below 16, as compiled flex_attention does on a GPU."""
    if q.dtype == torch.float64 or q.shape[3] < 16:
        raise RuntimeError("not supported")
    return of_any_dtype(q, k, v, causal=False, softmax_scale=softmax_scale)


def of_its_own_scale(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """Attention that takes no scale and uses D^-0.5."""
    return of_any_dtype(q, k, v, causal=causal, softmax_scale=q.shape[3] ** -0.5)


@pytest.mark.parametrize(
    ("function", "how", "most", "refused"),
    [
        (of_any_dtype, {}, 50, set()),
        (of_16_bits, {}, 48, set()),
        (of_one_mask, {"mask": "full"}, 25, {"head_dim=8"}),
        (of_tiles, {}, 37, {*(f"head_dim={dim}" for dim in (8, 16, 24, 32, 40)), "mask=full",
                                    *(f"seqlen={length}" for length in (40, 43, 48, 96, 192))}),
        (of_one_key_head, {}, 60, {*(f"head_dim={dim}" for dim in (8, 16, 24, 32, 40, 64)), "heads_kv=2"}),
        (of_its_own_scale, {}, 60, set()),
    ],
)  # fmt: skip
def test_a_function_meets_few_shapes_and_is_asked_what_it_refuses(
    function: Callable[..., Tensor], how: dict[str, str], most: int, refused: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it is asked in are those of the sweep, but for one or two."""

    def planned(*asking: Any) -> NoReturn:
        configuration, not_taken = with_answers(*asking)
        raise Planned([each.case for each in plan(configuration, None, 1) if each.unsupported is None], not_taken)

    monkeypatch.setattr("accuracy.api.measure.with_answers", planned)
    CALLED.clear()
    with pytest.raises(Planned) as found:
        accuracy.diagnose(function, world_size=1, device="cpu", progress=False, **how)
    cases, not_taken = found.value.args
    assert {str(each.unsupported).removeprefix("not taken: ").partition(" ")[0] for each in not_taken} == refused
    sweep = {(*sizes(each.problem), each.dtype, each.problem.causal, each.problem.softmax_scale) for each in cases}
    every = CALLED | {(*each[:-1], round(each[-1], 6)) for each in sweep}
    assert len(every) <= most, sorted(every)


def sizes(problem: Problem) -> tuple[int, ...]:
    return problem.batch, problem.seqlen, problem.heads, problem.heads_kv, problem.head_dim
