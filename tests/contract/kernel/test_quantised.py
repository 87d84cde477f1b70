"""The kernel `quantised` does what its policy says, place by place, and nothing where the policy says nothing."""

from dataclasses import fields, replace

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from accuracy.config.checks import check
from accuracy.core.errors import ConfigError
from accuracy.core.quantisation import POLICIES, Policy, unit_roundoff
from accuracy.kernel.lowp.quantised import KERNEL
from tests.contract.kernel.problem import NAMES, Problem, measured, posed, relative, results

DOUBLE = Problem(queries=130, keys=200, heads=4, heads_kv=2, dim=64, dtype=torch.float64, scale=0.125)
SINGLE = replace(DOUBLE, dtype=torch.float32)


def errors(problem: Problem, **knobs: object) -> dict[str, float]:
    return measured(KERNEL(**knobs), problem)


def test_what_quantises_nothing_changes_nothing() -> None:
    """Sums of 200 and 64 terms in float64: 2^-53 times a random walk of some tens, and a turn back and forth; the tile
    of keys decides only how the sums are cut."""
    for causal, knobs in ((True, {}), (False, {"smooth_k": True}), (True, {"hadamard": True}),
                          (True, {"key_chunk": 7})):  # fmt: skip
        assert max(errors(replace(DOUBLE, causal=causal), **knobs).values()) < 2e-15, knobs


def cast(x: np.ndarray, scale: float) -> np.ndarray:
    """To e4m3 and back by the library, which rounds float32: so x is float32 here."""
    codes = (x / np.float32(scale)).astype("float32").astype(ml_dtypes.float8_e4m3fn)
    return codes.astype("float32") * np.float32(scale)


def test_fp8_is_what_a_plain_loop_over_the_library_s_casts_gives() -> None:
    """One head, full mask, one tile, a scale a tensor: FlashAttention's formulas with every operand cast."""
    problem = Problem(queries=48, keys=48, heads=1, dim=32, causal=False, scale=0.25, dtype=torch.float32)
    tensors = problem.draw("cpu")
    found = [x.squeeze().double().numpy() for x in results(KERNEL(policy="fp8_tensor"), problem, tensors)]
    q, k, v, dout = (x.squeeze().numpy() for x in tensors)
    low = [cast(x, np.abs(x).max() / np.float32(448)) for x in (q, k, v, dout)]
    scores = (low[0] @ low[1].T) * np.float32(0.25)
    top = scores.max(1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(1, keepdims=True)
    out = cast(weights, 1 / 256) @ low[2] / total
    lse = (top + np.log(total))[:, 0]
    normalised = np.exp(scores - lse[:, None])
    delta = (dout * out).sum(1, keepdims=True)
    slope = normalised * (low[3] @ low[2].T - delta)
    slope = cast(slope, np.abs(slope).max() / np.float32(448))
    expected = (out, lse, slope @ low[1] * 0.25, slope.T @ low[0] * 0.25, cast(normalised, 1 / 256).T @ low[3])
    for name, x, one in zip(NAMES, found, expected, strict=True):
        # sums in another order; a weight next to a tie goes the other way once in some thousands: 2^-4 of it
        assert np.linalg.norm(x - one) < 3e-3 * np.linalg.norm(one), name


def test_no_named_policy_loses_more_than_its_formats_explain() -> None:
    """4 unit roundoffs (verdict/evidence.py derives it); without a policy float32's 128, as in the contract."""
    for name, policy in POLICIES.items():
        found = errors(replace(SINGLE, causal=False, heads=2), policy=name)
        assert max(found.values()) < 4 * (policy.unit_roundoff or 32 * 2.0**-24), name
        assert min(found["out"], found["dq"]) > policy.unit_roundoff / 8, name


PLACES_OF = {  # place: tensors that it may change, the others stay to the bit
    "q": "out lse dq dk dv", "k": "out lse dq dk dv", "v": "out dq dk", "p": "out dq dk dv", "ds": "dq dk",
    "do": "dq dk dv", "out": "out dq dk", "dq": "dq", "dk": "dk", "dv": "dv",
}  # fmt: skip


def differing(knobs: dict[str, object], **other: object) -> set[str]:
    pair = (results(KERNEL(**each), SINGLE, posed(SINGLE)[0]) for each in (knobs, {**knobs, **other}))
    return {name for name, one, another in zip(NAMES, *pair, strict=True) if not torch.equal(one, another)}


def test_a_place_changes_what_it_is_an_operand_of_and_nothing_else() -> None:
    """Of p and v, dq and dk change by way of the returned out, in delta. delta of a cast dout is in dq and dk alone; a
    short sum of dq goes over all tiles unless each is added by itself."""
    for place, changed in PLACES_OF.items():
        assert differing({}, **{place: "int8"}) == set(changed.split()), place
    assert differing({"policy": "fp8_hopper", "key_chunk": 64}, descending=True) == set(NAMES) - {"dv"}
    assert differing({"do": "e4m3"}, delta_of_cast=True) == {"dq", "dk"}
    assert differing({"policy": "fp8_hopper", "key_chunk": 32}, dq_by_tile=True) == {"dq"}


def test_smoothing_and_rotation_take_what_is_common_and_what_stands_out_out_of_the_rounding() -> None:
    """Keys of mean 8 and deviation 1: scales are 3 times too large without smoothing. One channel of q and one of k 20
    times the others: int4 by a scale a tensor keeps nothing else."""

    def lost(given: list[Tensor], **knobs: object) -> float:
        return relative(results(KERNEL(**knobs), SINGLE, given), SINGLE.reference(*given))["out"]

    q, k, v, dout = SINGLE.draw("cpu")
    shifted = [q, k + 8, v, dout]
    assert lost(shifted, k="int8", smooth_k=True) < lost(shifted, k="int8") / 2
    q[..., 3] *= 20
    k[..., 9] *= 20
    outliers = [q * 0.2, k * 0.2, v, dout]
    assert lost(outliers, q="int4", k="int4", hadamard=True) < lost(outliers, q="int4", k="int4") / 1.5


def test_an_accumulator_of_14_bits_loses_more_the_longer_it_is_and_less_when_it_is_flushed() -> None:
    """A sum of n terms of one sign, cut off after every 32 at 2^-13 of itself at most, lacks up to n / 32 * 2^-13 of
    itself: 1.6% of 4,096 terms. A float32 sum behind every 128 terms leaves 4 cuts. q = 0 and v in [1, 2): every weight
    is 1, and out is their mean."""

    def lost(keys: int, **knobs: object) -> float:
        kernel, zeros = KERNEL(accumulator_bits=14, **knobs), torch.zeros(1, keys, 1, 16)
        v = 1 + torch.rand(1, keys, 1, 16, generator=torch.Generator().manual_seed(1))
        out, _ = kernel.forward(zeros[:, :2], zeros, v, scale=1.0, causal=False, out_dtype=v.dtype)
        expected = v.double().mean(1, keepdim=True)
        return float(((out - expected) / expected).mean())

    short, long, flushed = lost(512), lost(4096), lost(4096, flush_interval=128)
    assert -4096 / 32 * 2.0**-13 < long < 4 * short < 0
    assert -4 * 2.0**-13 < flushed < 0


BAD = [  # knobs, and what the line must say
    ({"scale_format": "e4m3"}, "with granularity=tensor; allowed: elements_16"),
    ({"policy": "fp8_tensor", "p_prescale": 512.0}, "p_prescale=512; allowed: up to 448"),
    ({"cut_products": True}, "accumulator_bits=24, granularity=tensor; allowed: below 24"),
    ({"p": "e3m4"}, "kernel.quantised.p 'e3m4' is unknown; allowed: bfloat16, e2m1, "),
]


def test_a_bad_combination_is_one_line() -> None:
    for knobs, words in BAD:
        with pytest.raises(ConfigError) as raised:
            check(KERNEL, "kernel.quantised", knobs)
        assert str(raised.value).startswith("kernel.quantised")
        assert words in str(raised.value), knobs
        assert "\n" not in str(raised.value), knobs


def test_every_field_of_a_policy_is_a_knob_and_the_table_s_text_of_a_policy_is_read_back() -> None:
    own = {"policy", "key_chunk", "backward_chunk"}
    assert {each.name for each in fields(KERNEL)} == {each.name for each in fields(Policy)} | own
    assert KERNEL(policy="sage").resolved() == POLICIES["sage"]
    assert KERNEL(policy="sage", p="none").resolved() == replace(POLICIES["sage"], p="none")
    for kernel, text, unit in (
        ("quantised", "key_chunk=128,policy=nvfp4", 2.0**-2),
        ("quantised", "key_chunk=128,p=e5m2,policy=fp8_tensor,smooth_k=True", 2.0**-3),
        ("quantised", "accumulator_bits=14,flush_interval=128,policy=none", 2.0**-11),
        ("eager", "policy=nvfp4", 0.0), ("quantised", "policy=of_another_version", 1.0),
    ):  # fmt: skip
        assert unit_roundoff(kernel, text) == unit, text
