"""Every family proves the fault that it is for, and does not take a look-alike for it."""

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

from accuracy.execute.plan import measured, plan
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.verdict.proof import causes
from tests import planting
from tests.measuring import TINY, configuration
from tests.planted import Plain, explained, rows

TOKENS = torch.arange(40).view(4, 10)


def noise(x: Tensor, size: float) -> Tensor:
    return x * (1 + size * torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype))


def final(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Plain], dict[str, Tensor]]:
    """One result changed at the end."""

    def planted(plain: Plain) -> dict[str, Tensor]:
        right = plain.results()
        return right | {name: change(right[name])}

    return planted


def whole(**change: Callable[[Plain], object]) -> Callable[[Plain], dict[str, Tensor]]:
    """A correct attention of something else."""
    return lambda plain: plain.but(**{name: make(plain) for name, make in change.items()}).results()


def scale_squared_in_the_backward(plain: Plain) -> dict[str, Tensor]:
    other = plain.but(scale=plain.scale**2).results()
    return plain.results() | {name: other[name] for name in ("dq", "dk", "dv")}


def on_rank(rank: int, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def changed(x: Tensor) -> Tensor:
        shards = x.unflatten(1, (4, -1)).clone()
        shards[:, rank] = change(shards[:, rank])
        return shards.flatten(1, 2)

    return changed


def shifted(x: Tensor) -> Tensor:
    return x.roll(-10, 1)


def blocks(name: str, times: dict[tuple[int, int], float]) -> Callable[[Plain], dict[str, Tensor]]:
    """A gradient with some (query rank, key rank) blocks added so many more times."""

    def planted(plain: Plain) -> dict[str, Tensor]:
        found = plain.results()
        for (mine, source), more in times.items():
            found[name] = found[name] + more * plain.part(TOKENS[mine], TOKENS[source])[name]
        return found

    return planted


def without(query: int, key: int) -> Callable[[Plain], Tensor]:
    def mask(plain: Plain) -> Tensor:
        changed = plain.mask.clone()
        changed[query, key] = 0
        return changed

    return mask


def out_alone(plant: Callable[[Plain], dict[str, Tensor]]) -> Callable[[Plain], dict[str, Tensor]]:
    """Of a function that returns no lse."""
    return lambda plain: {name: x for name, x in plant(plain).items() if name != "lse"}


def mean_of_partials(plain: Plain) -> dict[str, Tensor]:
    """Out is the running mean of the partials of each rank's keys."""
    right, owner = plain.results(), torch.arange(40) // 10
    out = torch.zeros_like(right["out"])
    for rank in range(4):
        mine = owner == rank
        joined = None
        for hop in range(rank + 1):
            keys = owner == rank - hop
            part = plain.but(mask=torch.where(mine[:, None] & ~keys[None], 0.0, plain.mask)).results()["out"]
            joined = part if joined is None else (joined + part) / 2
        out[:, mine] = joined[:, mine]  # type: ignore[index]
    return right | {"out": out}


def in_eight_bits(x: Tensor) -> Tensor:
    scale = x.abs().amax((1, 3), keepdim=True) / 448
    return (x / scale).to(torch.float8_e4m3fn).double() * scale


def no_delta(plain: Plain) -> dict[str, Tensor]:
    """dS = P dP."""
    right = plain.results()
    k, v = (x[:, :, plain.heads] for x in (plain.k, plain.v))
    scores = torch.einsum("bqhd,bkhd->bhqk", plain.q, k) * plain.scale + plain.mask.log()
    ds = scores.softmax(-1) * torch.einsum("bqhd,bkhd->bhqk", plain.dout, v) * plain.scale
    dk = torch.einsum("bhqk,bqhd->bkhd", ds, plain.q).unflatten(2, (4, -1)).sum(3)
    return right | {"dq": torch.einsum("bhqk,bkhd->bqhd", ds, k), "dk": dk}


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


def other_delta(plain: Plain) -> dict[str, Tensor]:
    """Each head has the delta of head 0."""
    right, without = plain.results(), no_delta(plain)
    delta = (plain.dout * right["out"]).sum(-1)
    scores = torch.einsum("bqhd,bkhd->bhqk", plain.q, plain.k[:, :, plain.heads]) * plain.scale + plain.mask.log()
    mean_key = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), plain.k[:, :, plain.heads]) * plain.scale
    return right | {"dq": without["dq"] - delta[:, :, :1, None] * mean_key}


def of_first_head(plain: Plain) -> dict[str, Tensor]:
    """dv is that of the first query head of each group."""
    alone = plain.dout.clone()
    alone[:, :, torch.arange(12) % 3 != 0] = 0
    return plain.results() | {"dv": plain.but(dout=alone).results()["dv"]}


def summed_in_bfloat16(plain: Plain) -> dict[str, Tensor]:
    """dk travels round the ring and is rounded after each hop."""
    found = plain.results()
    found["dk"] = torch.zeros_like(found["dk"])
    for owner in range(4):
        for hop in range(4):
            part = plain.part(TOKENS[(owner + hop) % 4], TOKENS[owner])["dk"][:, TOKENS[owner]]
            found["dk"][:, TOKENS[owner]] = to_bfloat16(found["dk"][:, TOKENS[owner]] + part)
    return found


def first_dims(x: Tensor) -> Tensor:
    return x * (torch.arange(x.shape[-1]) < 16)


def to_bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().double()


PROVEN = {
    "out times 1.01": (final("out", lambda x: 1.01 * x), "out", "out is 1.01 times"),
    "dk times 1 + 2^-20": (final("dk", lambda x: (1 + 2.0**-20) * x), "dk", "(1 + 2^-20) times"),
    "dq twice on rank 2": (final("dq", on_rank(2, lambda x: 2 * x)), "dq", "2 on rank 2"),
    "lse to base 2": (final("lse", lambda x: x / math.log(2)), "lse", "1/ln 2 times"),
    "lse without ln 2": (final("lse", lambda x: x - math.log(2)), "lse", "too small by ln 2"),
    "scale squared": (whole(scale=lambda plain: plain.scale**2), "out", "softmax scale is 0.04"),
    "scale squared in the backward": (scale_squared_in_the_backward, "dv", "scale is 0.04"),
    "dk of the next rank": (final("dk", shifted), "dk", "shard of rank r + 1"),
    "keys of the next rank": (whole(k=lambda plain: shifted(plain.k)), "out", "k has the shard of rank r + 1"),
    "keys and values in 8 bits": (
        whole(k=lambda plain: in_eight_bits(plain.k), v=lambda plain: in_eight_bits(plain.v)),
        "out", "k and v are cast to float8_e4m3 with a scale a head",
    ),
    "heads h % Hk": (whole(heads=lambda plain: torch.arange(12) % 4), "out", "h % Hk"),
    "dv of the first head": (of_first_head, "dv", "only the first query head"),
    "a block twice": (blocks("dk", {(2, 1): 1}), "dk", "queries of rank 2 and keys of rank 1 twice"),
    "a block missing": (blocks("dq", {(3, 1): -1}), "dq", "misses the block of queries of rank 3 and keys of rank 1"),
    "diagonal hidden": (whole(mask=lambda plain: plain.mask.tril(-1) + torch.eye(40)[0].outer(torch.eye(40)[0])),
                        "out", "39 pairs of a query at p and the key at p +0"),
    "one key ahead": (whole(mask=lambda plain: torch.ones_like(plain.mask).tril(1)), "out", "too far ahead"),
    "no mask": (whole(mask=lambda plain: torch.ones(40, 40, dtype=torch.float64)), "out", "no causal mask"),
    "one pair": (whole(mask=without(27, 13)), "out", "leaves out key 13 for 1 queries from 27"),
    "lse transposed": (final("lse", lambda x: x.transpose(1, 2).reshape(x.shape)), "lse", "read as"),
    "one pair, no lse": (out_alone(whole(mask=without(27, 13))), "out", "leaves out key 13 for 1 queries from 27"),
    "mean of partials": (mean_of_partials, "out", "averaged without weights"),
    "no delta": (no_delta, "dq", "delta is missing"),
    "a sum in bfloat16": (summed_in_bfloat16, "dk", "the sum of dk is, after each hop, cast to bfloat16"),
    "dims cut": (whole(q=lambda plain: first_dims(plain.q)), "out", "first 16 of 24 dims"),
    "delta of the first head": (other_delta, "dq", "a wrong delta"),
    "keys of zeros": (with_keys_of_zeros, "out", "3 keys of zeros"),
    "a small constant": (with_a_constant, "lse", "1e-09 is added to the sum of exp(s - max)"),
    "a tail of tokens": (final("dk", lambda x: x * (torch.arange(40) < 37)[:, None, None]), "dk",
                         "zero in tokens 37 to 39 of 40"),
    "keys in bfloat16": (whole(k=lambda plain: to_bfloat16(plain.k)), "out", "k is cast to bfloat16"),
}  # fmt: skip


@pytest.mark.stress(6)
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


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike_is_not_proven(name: str) -> None:
    plant, tensor = LOOK_ALIKES[name]
    assert not explained(plant)[tensor].proven


def test_a_factor_of_the_size_of_a_cast_is_no_cast() -> None:
    found = explained(final("dq", lambda x: (1 + 2.0**-8) * x))["dq"]
    assert found.proven
    assert not found.is_cast


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


def test_heads_taken_for_tokens_are_named_on_one_rank() -> None:
    """With one head of keys a function of (B, H, S, D) gives each query its own token's value."""
    found = explained(whole(mask=lambda plain: torch.eye(40, dtype=torch.float64)), "world_size=1")["out"]
    assert found.proven, found
    assert "layout=bhsd" in found.text


def test_gradients_that_follow_from_a_wrong_out_are_told() -> None:
    """A backward from the returned out and lse, and one by autograd."""
    found = explained(whole(scale=lambda plain: plain.scale**2))
    assert all(found[name].proven and set(found[name].names) & set(found["out"].names) for name in ("dq", "dk", "dv"))


def test_a_dropout_mask_that_heads_use_again_is_proven(tmp_path: Path) -> None:
    """And with padding behind the last rank's tokens: what is explained is of no rank then."""
    planting.slip(tmp_path, "llama3", ".of_heads(group.query.start)", "")
    words = (*TINY, "variant=broken", "variant.broken.heads_stride=1", "world_size=2", "dtype=float64", "kernel=eager",
             "reruns.explain=true", "problem.dropout=0.25", "problem.seqlen=31", "problem.padding=end")  # fmt: skip
    (planned,) = plan(configuration(*words, folders=[tmp_path]), None)
    found = measured(Pipeline("test", Cache(None, 0.0)), planned)
    known = causes(pd.DataFrame(found.table("hypotheses")), pd.DataFrame([planned.case.identity()]))
    assert known["out"].proven, known["out"]
    assert "the first one's dropout masks" in known["out"].text


LARGE = ("world_size=4", "problem.seqlen=240")


@pytest.mark.stress(1)
@pytest.mark.parametrize("name", ["out times 1.01", "one key ahead"])
def test_in_a_large_problem_one_group_of_heads_is_explained(name: str) -> None:
    planted = {"out times 1.01": PROVEN["out times 1.01"][0],
               "one key ahead": whole(mask=lambda plain: torch.ones_like(plain.mask).tril(1))}  # fmt: skip
    found = explained(planted[name], *LARGE)["out"]
    assert found.proven, found
    assert PROVEN[name][2] in found.text
