"""Every family proves the fault that it is for, and does not take a look-alike for it.

Faults of schedules and kernels, and the causes that are proven of them, stand in `tests/unit/fault`; here are others.
"""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cached_property

import pandas as pd
import pytest
import torch
from torch import Tensor

from accuracy.explain.hypothesis.attention import Attention
from accuracy.verdict.proof import causes
from tests.measuring import TINY, case_of, pipeline
from tests.planted import Plain, Plant, explained, rows


def noise(x: Tensor, size: float) -> Tensor:
    return x * (1 + size * torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype))


def final(name: str, change: Callable[[Tensor], Tensor]) -> Plant:
    """One result changed at the end."""

    def planted(plain: Plain) -> dict[str, Tensor]:
        right = plain.results()
        return right | {name: change(right[name])}

    return planted


def whole(**change: Callable[[Plain], object]) -> Plant:
    """A correct attention of something else."""
    return lambda plain: plain.but(**{name: make(plain) for name, make in change.items()}).results()


def shifted(x: Tensor) -> Tensor:
    return x.roll(-10, 1)


def a_key_ahead_on_rank_2(plain: Plain) -> Tensor:
    rows = torch.arange(20, 30)
    changed = plain.mask.clone()
    changed[rows, rows + 1] = 1
    return changed


def one_pair(plain: Plain) -> Tensor:
    changed = plain.mask.clone()
    changed[27, 13] = 0
    return changed


def without_lse(plant: Plant) -> Plant:
    return lambda plain: {name: x for name, x in plant(plain).items() if name != "lse"}


def diagonal_hidden(plain: Plain) -> Tensor:
    """But for the first token."""
    return plain.mask.tril(-1) + torch.eye(40)[0].outer(torch.eye(40)[0])


def fourth_rows(x: Tensor, factor: float) -> Tensor:
    return torch.where((torch.arange(x.shape[1]) % 4 == 3)[:, None, None], factor * x, x)


def with_lse_of_fourth_rows(plain: Plain) -> dict[str, Tensor]:
    """P of every fourth query is 0.999 times what it should be in the backward, out and delta are right."""
    less = plain.but(dout=fourth_rows(plain.dout, 0.999)).results()
    return plain.results() | {name: less[name] for name in ("dq", "dk", "dv")}


def in_eight_bits(x: Tensor) -> Tensor:
    scale = x.abs().amax((1, 3), keepdim=True) / 448
    return (x / scale).to(torch.float8_e4m3fn).double() * scale


def to_bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def with_keys_of_zeros(plain: Plain) -> dict[str, Tensor]:
    """Three more keys of zeros in every row."""
    right = plain.results()
    lse = torch.log(right["lse"].exp() + 3)
    return right | {"lse": lse, "out": right["out"] * torch.exp(right["lse"] - lse)[..., None]}


def with_a_constant(plain: Plain) -> dict[str, Tensor]:
    """Against a division by zero."""
    right = plain.results()
    scores = torch.einsum("bqhd,bkhd->bhqk", plain.q, plain.k[:, :, plain.heads]) * plain.scale + plain.mask.log()
    top = scores.amax(-1).transpose(1, 2)
    return right | {"lse": top + torch.log(torch.exp(right["lse"] - top) + 1e-9)}


def of_first_head(plain: Plain) -> dict[str, Tensor]:
    """dv is that of the first query head of each group."""
    alone = plain.dout * (torch.arange(12) % 3 == 0)[:, None]
    return plain.results() | {"dv": plain.but(dout=alone).results()["dv"]}


def block_again(plain: Plain) -> dict[str, Tensor]:
    """dk with the block of rank 2's queries and rank 1's keys added twice."""
    part = plain.part(torch.arange(20, 30), torch.arange(10, 20))
    right = plain.results()
    return right | {"dk": right["dk"] + part["dk"]}


PROVEN = {
    "dk times 1 + 2^-20": (final("dk", lambda x: (1 + 2.0**-20) * x), "dk", "(1 + 2^-20) times"),
    "dq twice on rank 2": (
        final("dq", lambda x: x * (1 + (torch.arange(40) // 10 == 2))[:, None, None]), "dq", "2 on rank 2"),
    "a quarter of out's rows": (final("out", lambda x: fourth_rows(x, 0.999)), "out", "0.999 times what it should"),
    "a quarter of dq's rows": (final("dq", lambda x: fourth_rows(x, 0.999)), "dq", "0.999 times what it should"),
    "a head of dv": (final("dv", lambda x: x * torch.tensor([1, 1, 1, 0.999])[:, None]), "dv", "on the last head of 4"),
    "lse of a quarter": (with_lse_of_fourth_rows, "dq", "the backward is given a wrong lse"),
    "lse without ln 2": (final("lse", lambda x: x - math.log(2)), "lse", "too small by ln 2"),
    "scale squared": (whole(scale=lambda plain: plain.scale**2), "out", "softmax scale is 0.04"),
    "keys of the next rank": (whole(k=lambda plain: shifted(plain.k)), "out", "k has the shard of rank r + 1"),
    "keys and values in 8 bits": (
        whole(k=lambda plain: in_eight_bits(plain.k), v=lambda plain: in_eight_bits(plain.v)),
        "out", "k and v are cast to float8_e4m3 with a scale a head",
    ),
    "dv of the first head": (of_first_head, "dv", "only the first query head"),
    "a block twice": (block_again, "dk", "queries of rank 2 and keys of rank 1 twice"),
    "diagonal hidden": (whole(mask=diagonal_hidden), "out", "39 pairs of a query at p and the key at p +0"),
    "no mask": (whole(mask=lambda plain: torch.ones(40, 40, dtype=torch.float64)), "out", "no causal mask"),
    "one pair": (whole(mask=one_pair), "out", "leaves out key 13 for 1 queries from 27"),
    "one pair, no lse": (without_lse(whole(mask=one_pair)), "out", "leaves out key 13 for 1 queries from 27"),
    "lse transposed": (final("lse", lambda x: x.transpose(1, 2).reshape(x.shape)), "lse", "read as"),
    "dims cut": (whole(q=lambda plain: plain.q * (torch.arange(24) < 16)), "out", "first 16 of 24 dims"),
    "keys of zeros": (with_keys_of_zeros, "out", "3 keys of zeros"),
    "a small constant": (with_a_constant, "lse", "1e-09 is added to the sum of exp(s - max)"),
    "a tail of tokens": (final("dk", lambda x: x * (torch.arange(40) < 37)[:, None, None]), "dk",
                         "zero in tokens 37 to 39 of 40"),
    "a mask of one rank": (whole(mask=a_key_ahead_on_rank_2), "dv",
                           "shows 10 pairs of a query at p and the key at p +1"),
    "keys in bfloat16": (whole(k=lambda plain: to_bfloat16(plain.k)), "out", "k is cast to bfloat16"),
}  # fmt: skip


@pytest.mark.stress(4)
@pytest.mark.parametrize("name", PROVEN)
def test_a_planted_fault_is_proven(name: str) -> None:
    plant, tensor, words = PROVEN[name]
    found = explained(plant)[tensor]
    assert found.proven, found
    assert words in found.text, found


LOOK_ALIKES = {
    "a factor with noise": (final("out", lambda x: noise(1.01 * x, 1e-6)), "out"),
    "noise of bfloat16's size": (final("dq", lambda x: noise(x, 2.0**-9)), "dq"),
    "a shift with noise": (final("dk", lambda x: noise(shifted(x), 1e-6)), "dk"),
    "another scale in each head": (whole(q=lambda plain: plain.q * torch.linspace(1, 1.1, 12)[:, None]), "out"),
    "keys of another sequence": (whole(k=lambda plain: noise(plain.k, 1.0)), "out"),
}


@pytest.mark.stress(2)
@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike_is_not_proven(name: str) -> None:
    plant, tensor = LOOK_ALIKES[name]
    assert not explained(plant)[tensor].proven


def test_a_block_that_counts_twice_is_known_by_the_ranks_of_its_queries_and_keys() -> None:
    assert explained(block_again)["dk"].blocks == {(2, 1): 2.0}


def test_at_two_ranks_shift_reversal_and_swap_are_named_together() -> None:
    found = explained(final("dk", lambda x: x.roll(-20, 1)), "world_size=2")["dk"]
    assert found.proven
    assert {"moved: the shard of rank r + 1", "moved: the shard of rank W - 1 - r",
            "moved: the shards of ranks 0 and 1 exchanged"} == set(found.names)  # fmt: skip


def test_a_healthy_function_has_no_rows_nor_has_one_that_is_float32_inside_in_float64() -> None:
    for dtype in ("float64", "float32", "bfloat16"):
        _, found = rows(lambda plain: plain.results(), "world_size=4", f"dtype={dtype}")
        assert found.empty, dtype
    _, found = rows(lambda plain: {name: x.float().double() for name, x in plain.results().items()})
    assert found.empty


OF_SETTINGS = {
    "a softcap is ignored": (lambda plain: plain.results(), ("problem.softcap=2.0",), "the softcap is ignored"),
    # with one head of keys a function of (B, H, S, D) gives each query its own token's value
    "heads taken for tokens": (whole(mask=lambda plain: torch.eye(40, dtype=torch.float64)), (), "layout=bhsd"),
    # of which one group of heads is explained
    "a large problem": (final("out", lambda x: 1.01 * x), ("world_size=4", "problem.seqlen=240"), "out is 1.01 times"),
    "a factor of the size of a cast": (final("out", lambda x: (1 + 2.0**-8) * x), (), "out is (1 + 2^-8) times"),
}


@pytest.mark.parametrize("name", OF_SETTINGS)
def test_a_fault_of_one_setting_is_proven_and_is_no_cast(name: str) -> None:
    plant, words, text = OF_SETTINGS[name]
    found = explained(plant, "world_size=1", *words)["out"]
    assert (found.proven, found.is_cast) == (True, False), found
    assert text in found.text, found


def test_a_scaled_query_in_16_bits_is_known_by_its_lse() -> None:
    """Times the scale, which is no power of two, or also times log2(e), as kernels do that use exp2."""
    for unit in (1.0, math.log2(math.e)):
        scaled = whole(q=lambda plain, unit=unit: to_bfloat16(plain.q * 0.2 * unit) / (0.2 * unit))
        ((tensor, found),) = explained(scaled, "world_size=1", "dtype=bfloat16").items()
        assert (tensor, found.proven) == ("lse", True)
        assert found.text == "q times the scale is rounded to bfloat16"


def test_gradients_that_follow_from_a_wrong_out_are_told() -> None:
    """A backward from the returned out and lse, and one by autograd."""
    found = explained(whole(scale=lambda plain: plain.scale**2))
    assert all(found[name].proven and set(found[name].names) & set(found["out"].names) for name in ("dq", "dk", "dv"))


def test_with_padding_behind_a_rank_s_tokens_what_is_explained_is_of_no_rank() -> None:
    planted = [f"+variant.planted.{way}=tests.unit.fault.planted:scale_both" for way in ("forward", "backward")]
    case = case_of(*TINY, "variant=[]", *planted, "+variant.planted.sharding=contiguous", "world_size=2",
                   "kernel=eager", "dtype=float64", "reruns.explain=true", "problem.seqlen=31", "problem.padding=end",
                   "problem.softmax_scale=0.2")  # fmt: skip
    found = pipeline().measure(case)
    known = causes(pd.DataFrame(found.table("hypotheses")), pd.DataFrame([case.identity()]))
    assert known["out"].proven, known["out"]
    assert "softmax scale" in known["out"].text


DRAW = torch.Generator().manual_seed(0)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


VALUES = [name for name, each in vars(Attention).items() if isinstance(each, cached_property)]
STAGES = ("scores", "lse", "weights", "out", "backward_weights", "delta", "dp", "ds", "dq", "dk", "dv", "dk_heads")
CHANGES = {
    "q": drawn(1, 4, 6, 8), "k": drawn(1, 2, 6, 8), "v": drawn(1, 2, 6, 8), "dout": drawn(1, 4, 6, 8), "scale": 0.7,
    "counts": torch.ones(6, 6, dtype=torch.float64), "heads": torch.tensor([0, 1, 0, 1]), "softcap": 3.0,
    "saved": (drawn(1, 4, 6, 8), drawn(1, 4, 6)),
}  # fmt: skip


def test_a_change_leaves_no_stale_value() -> None:
    assert {*CHANGES, "stages"} == {each.name for each in fields(Attention)}
    q, k, v, dout = drawn(1, 4, 6, 8), drawn(1, 2, 6, 8), drawn(1, 2, 6, 8), drawn(1, 4, 6, 8)
    counts = torch.ones(6, 6, dtype=torch.float64).tril()
    known = Attention(q, k, v, dout, 0.3, counts, torch.tensor([0, 0, 1, 1]), softcap=5.0)
    kept = {name: getattr(known, name) for name in VALUES}
    stages = [{"stages": {each: lambda x: 2 * x}} for each in STAGES]
    for change in (*stages, *({name: value} for name, value in CHANGES.items())):
        changed, anew = known.but(**change), replace(known, **change)
        assert all(torch.equal(getattr(changed, name), getattr(anew, name)) for name in VALUES), change
        back = changed.but(**{key: getattr(known, key) for key in change})
        assert all(torch.equal(getattr(back, name), value) for name, value in kept.items()), change
