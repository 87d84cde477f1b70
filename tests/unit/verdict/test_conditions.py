"""Under which condition a variant is wrong: only what tells wrong problems from right ones is named."""

from typing import Any

import pandas as pd

from accuracy.verdict.facts import Facts
from accuracy.verdict.precision import hides
from tests.unit.verdict.synthetic import bend, factor, facts_of, healthy, rows

FINE = ("float32", "float64")


def small(problem: str, dtypes: tuple[str, ...] = FINE, **settings: Any) -> pd.DataFrame:
    """A healthy problem beside the main one."""
    table = healthy((1,), dtypes, seeds=1)
    return table.assign(case_id=problem + " " + table["dtype"], **settings)


def among(*more: pd.DataFrame, wrong: dict[str, Any], main: pd.DataFrame | None = None) -> Facts:
    """The facts of a main problem and others, in which out is wrong where these settings hold."""
    table = pd.concat([healthy((1,)) if main is None else main, *more], ignore_index=True)
    return facts_of(bend(table, wrong | {"tensor": "out"}, error_rel=0.9))


def test_a_dtype_is_called_right_or_the_only_one_where_it_was_measured_under_the_condition() -> None:
    """Batches were run in float32 and float64 only; a run in one dtype, or in 16 bits alone, says so."""
    batch = small("two", batch=2)
    found = among(batch, wrong={"batch": 2})
    assert (found.sound_dtypes, found.only_dtypes) == ((), FINE)
    assert "in float32 and float64, only with batch=2 (run in no other dtype)" in found.sentence
    found = among(batch, wrong={"batch": 2, "dtype": "float32"})
    assert "in float32 and right in float64, only with batch=2 (run in no other dtype)" in found.sentence
    for dtypes, alone in ((("float32",), True), (("bfloat16", "float16"), True), (("float16", "float32"), False)):
        found = among(main=healthy((1,), dtypes), wrong={})
        assert (", the only dtype" in found.sentence) == alone, found.sentence
        assert ("at any precision" in found.sentence) != alone
    more = pd.DataFrame(rows("out", ("bfloat16",), 1, inputs="peaked"))
    found = among(more, wrong={"inputs": "peaked"})
    assert "is wrong in bfloat16, on peaked inputs only (run in no other dtype)" in found.sentence
    found = among(healthy((4,), ("float32",)).assign(case_id="four"), wrong={"world_size": 4})
    assert (found.sound_dtypes, found.sizes_right) == ((), (1,))


def test_a_dtype_whose_rounding_is_as_large_as_the_bug_is_not_called_right() -> None:
    """Of float32 in TF32 and of 16 bits it is not known whether they have the factor of float64, too."""
    factor = {"error_rel": 1e-4, "error_gain": 1e-4, "error_gain_se": 1e-8}
    bent = bend(healthy((1,), ("bfloat16", *FINE)), {"tensor": "out", "dtype": "float64"}, **factor)
    found = facts_of(bent)
    assert (found.dtypes, found.sound_dtypes, found.hidden_dtypes) == (("float64",), ("float32",), ("bfloat16",))
    tf32 = bend(bent, {"tensor": "out", "dtype": "float32"}, error_rel=4e-5)
    for tensors in (("out",), ("out", "dv")):
        assert hides(tf32[tf32["tensor"].isin(tensors)], {"float64"}) == {"bfloat16", "float32"}


def test_each_tensor_and_each_size_of_error_has_its_own_fault() -> None:
    """dk is off in three dtypes and dv in float64 alone: dv is right in float32, and of dk in bfloat16 nothing is
    known. What float64's cause does not make in another dtype is another fault, and so is another factor."""
    size = {"error_rel": 2e-3, "error_gain": 2e-3, "error_gain_se": 1e-6}
    bent = bend(healthy((1,)), {"tensor": "dk", "dtype": ("float16", *FINE)}, **size)
    bent = bend(bent, {"tensor": "dv", "dtype": "float64"}, error_rel=0.3)
    factors = [factor("dk", 1.002), factor("dv", 1.3)]
    found = facts_of(bent, factors)
    assert (found.dtypes, found.hidden_dtypes) == (("float16", *FINE), ("bfloat16",))
    assert (found.right_alone, found.otherwise) == ({"dv": ("float16", "float32")}, {})
    assert all(str(each["cause"]) in found.sentence for each in factors)
    dq = bend(healthy((1,)), {"tensor": "dq"}, error_rel=0.1)
    lse = facts_of(bend(dq, {"tensor": "lse", "dtype": "float64"}, error_rel=0.1))
    assert (lse.lead, lse.dtypes) == (("lse",), ("float64",))
    for number, following in ((1.01, ("dq",)), (1.5, ())):
        out = bend(healthy((1,)), {"tensor": ("out", "dq")}, error_rel=0.01)
        assert facts_of(out, [factor("out", 1.01), factor("dq", number)]).following == following
    for size, otherwise in ((2e-3, {}), (0.1, {"bfloat16": {"out": 0.1}})):
        two = bend(healthy((1,)), {"tensor": "out"}, error_rel=1e-3)
        two = bend(two, {"tensor": "out", "dtype": "bfloat16"}, error_rel=size, error_gain=size, error_gain_se=1e-6)
        assert facts_of(two, [factor("out", 1.001)]).otherwise == otherwise


def test_a_dtype_is_wrong_where_its_own_numbers_say_so() -> None:
    """A factor below float16's unit roundoff is seen in it; one of 1e-5 beside float32 inside is not seen in 16 bits. A
    dtype that was not asked what shows a fault is right where Gaussian inputs show it, too."""
    gain = {"error_gain": 2e-4, "error_gain_se": 1e-8}
    small = bend(healthy((1,)), {"tensor": "out", "dtype": ("float16", *FINE)}, **gain)
    small = bend(small, {"tensor": "out", "dtype": FINE}, error_rel=2e-4)
    found = facts_of(bend(small, {"tensor": "out", "dtype": "float16"}, error_rel=2.3e-4))
    assert (found.dtypes, found.hidden_dtypes) == (("float16", *FINE), ("bfloat16",))
    inside = bend(healthy((1,)).assign(options="fn=mine.py:attend"), {"tensor": "dq", "dtype": FINE}, error_rel=1e-5)
    found = facts_of(inside)
    assert (found.label, found.dtypes, found.hidden_dtypes) == ("logic", FINE, ("bfloat16", "float16"))
    asked = {"inputs": "zero_query", "error_max": 0.1, "error_bias": 0.1, "error_rel": 0.1}
    table = pd.concat([healthy((1,)), pd.DataFrame(rows("lse", ("float16",), 1, **asked))], ignore_index=True)
    probed = facts_of(table)
    assert (probed.sound_dtypes, probed.inputs) == ((), ("zero_query",))
    shown = facts_of(bend(table, {"tensor": "lse", "dtype": "float16"}, error_rel=0.1))
    assert (shown.finding, shown.sound_dtypes) == ("keys", ("bfloat16", *FINE))


def test_a_dtype_that_is_wrong_in_another_problem_is_not_called_right() -> None:
    """float32 is wrong in both problems and bfloat16 in the second: nothing but the problem tells them apart."""
    full = small("full", ("bfloat16", "float32"), mask="full")
    main = bend(healthy((1,), ("bfloat16", "float32")), {"tensor": "out", "dtype": "float32"}, error_rel=0.9)
    assert among(full, main=main, wrong={"dtype": "float32"}).sound_dtypes == ("bfloat16",)
    wrong = among(full, main=main, wrong={"mask": "full"})
    assert (wrong.sound_dtypes, "at any precision" in wrong.sentence) == ((), True)


def test_a_number_between_those_of_right_problems_is_no_condition() -> None:
    """The grid's length of windows and softcaps, and its heads of batches, are named where nothing else tells."""
    lengths = [small(f"{length}", seqlen=length) for length in (40, 60)]
    heads = [small(f"h{number}", heads=number) for number in (2, 12)]
    window, capped = small("window", seqlen=48, mask="causal,window=10"), small("cap", seqlen=48, softcap=2.0)
    masked = [small(f"{length} {mask}", seqlen=length, mask=mask) for length in (8, 16) for mask in ("causal", "full")]
    of_ranks = healthy((3, 4, 5), FINE, seeds=1).assign(seqlen=480)
    for problems, wrong, settings in (
        ([*lengths, window], {"seqlen": 48}, [("mask=causal,window=10",)]),
        ([*lengths, window, capped], {"seqlen": 48}, [("mask=causal,window=10", "softcap=2.0")]),
        ([*lengths, small("48", seqlen=48)], {"seqlen": 48}, [("seqlen=48",)]),
        ([*lengths, small("43", seqlen=43, mask="causal,padding=end")], {"seqlen": 43}, [("seqlen=43",)]),
        ([*heads, small("two", batch=2, heads=8)], {"batch": 2}, [("batch=2",)]),
        ([small("two", batch=2, heads=8, heads_kv=8)], {"batch": 2}, [("batch=2",), ("heads=8",), ("heads_kv=8",)]),
        (lengths, {"seqlen": (40, 60)}, [("seqlen=40", "seqlen=60")]),
        (masked, {"seqlen": (8, 16), "mask": "causal"}, [("mask=causal",), ("seqlen=8", "seqlen=16")]),
    ):
        assert among(*problems, wrong=wrong).settings == (*settings,)
    few = {"seqlen": 480, "world_size": (3, 5)}
    assert among(of_ranks, main=healthy((1, 2, 4)), wrong=few).settings == (("world_size=3", "world_size=5"),)


def test_a_few_queries_of_many_keys_are_no_right_neighbour() -> None:
    """They hardly see what is wrong with a full mask, which all else that is full shows."""
    few = small("many", mask="full", seqlen=33024, seqlen_q=16)
    full = [small(f"{length}", mask="full", seqlen=length, seqlen_q=length) for length in (16, 43)]
    main = healthy((1,)).assign(seqlen_q=512)
    causal = [each.assign(case_id=each["case_id"] + "c", mask="causal") for each in full]
    found = among(few, *full, *causal, main=main, wrong={"mask": "full", "seqlen": (16, 43)})
    assert found.settings == (("mask=full",),)
    short, long = small("short", seqlen=8, seqlen_q=8), {"seqlen": int(main["seqlen"].iloc[0])}
    assert among(few, short, main=main, wrong=long).settings_right == ("seqlen=8",)


def test_a_problem_that_is_ill_otherwise_or_was_measured_otherwise_is_no_right_neighbour() -> None:
    """Without a right neighbour no condition is named."""
    short = small("short", ("float32",), seqlen=8)
    ill = bend(healthy((1,)), {"tensor": "out", "dtype": "float32"}, error_rel=3e-7, x_single_device=6.0)
    found = among(short, main=ill, wrong={"seqlen": 8})
    assert (found.label, found.settings) == ("logic", ())
    assert among(short, main=healthy((1,), ("bfloat16",)), wrong={"seqlen": 8}).settings == ()
    assert among(short, wrong={"seqlen": 8}).settings == (("seqlen=8",),)
    coarse, main = small("coarse", ("bfloat16",), seqlen=1024), {"seqlen": int(healthy((1,))["seqlen"].iloc[0])}
    assert among(coarse, wrong=main).settings_right == ()  # its rounding may hide a few rows
    assert among(coarse, small("fine", seqlen=8), wrong=main).settings_right == ("seqlen=8",)
    for off, settings in ((5e-3, ()), (0.1, ("seqlen=8",))):  # of a few rows no small factor is certain
        gain = {"error_rel": off, "error_gain": off, "error_gain_se": 1e-6}
        table = bend(healthy((1,), ("bfloat16",)), {"tensor": "out"}, **gain)
        found = facts_of(pd.concat([table, small("short", ("bfloat16",), seqlen=8)], ignore_index=True))
        assert (found.label, found.settings_right) == ("logic", settings)


def test_a_dtype_that_is_wrong_in_another_problem_with_the_same_setting_is_named() -> None:
    first = small("first", ("bfloat16",), seqlen=43)
    second = small("second", seqlen=43, mask="full")
    found = among(first, second, small("short", seqlen=16), small("16", ("bfloat16",), seqlen=16), wrong={"seqlen": 43})
    assert (found.settings, found.dtypes) == ((("seqlen=43",),), ("bfloat16", *FINE))
    assert (found.sound_dtypes, found.hidden_dtypes) == ((), ())


def test_a_condition_that_explains_too_little_is_not_named() -> None:
    """Settings that vary over the wrong problems, settings of three kinds, one token, and dtypes of other problems."""
    heads = [small(f"{kv}", seqlen=16, heads=33, heads_kv=kv) for kv in (11, 33)]
    assert among(*heads, small("two", seqlen=16), wrong={"heads": 33}).settings == (("heads=33",),)
    three = [small("b", batch=2), small("m", mask="full"), small("d", head_dim=40)]
    both = [small("right", batch=2, mask="full"), small("too", head_dim=40, mask="full"), small("x", seqlen=9)]
    cases = {"case_id": tuple(x for table in three for x in table["case_id"])}
    found = among(*three, *both, wrong=cases)
    assert (found.settings, found.wrong_problems, found.problems) == ((), 3, 7)
    assert "in 3 of 7 problems, as with" in found.sentence
    assert among(*three, small("x", seqlen=9), wrong=cases).settings == ()  # of three kinds
    assert among(*three[:2], small("x", seqlen=9), wrong=cases).settings == (("mask=full", "batch=2"),)
    short, one = small("short", heads_kv=1), small("one", seqlen=1, heads_kv=1)
    assert among(short, one, wrong={"case_id": tuple(short["case_id"])}).settings == (("heads_kv=1",),)
    fine, coarse = small("fine", batch=2), small("coarse", ("bfloat16",), batch=2, seqlen=43)
    near = small("near", ("bfloat16",), seqlen=43)
    found = among(fine, coarse, near, wrong={"batch": 2, "dtype": "bfloat16"})
    assert (found.settings, found.sound_dtypes) == ((("batch=2",),), FINE)


def test_what_right_problems_have_is_named_where_the_main_one_is_wrong() -> None:
    plain = [small(f"{heads}", seqlen=8 * heads, heads=heads, heads_kv=heads) for heads in (2, 4)]
    grouped = [small("grouped", seqlen=8, heads=8), healthy((1,)).assign(heads=8)]
    found = among(*plain, grouped[0], main=grouped[1], wrong={"heads": 8})
    assert (found.settings, found.settings_right) == ((), ("heads/heads_kv=1",))
    assert among(*plain, main=grouped[1], wrong={}).settings_right == ()


def test_numbers_of_ranks_are_named_beside_a_setting() -> None:
    full = healthy((1, 2, 4), FINE, seeds=1).assign(mask="full", case_id="full")
    found = among(full, main=healthy((1, 2, 4)), wrong={"mask": "full", "world_size": 4})
    assert (found.settings, found.sizes_wrong, found.sizes_right) == ((("mask=full",),), (4,), (1, 2))


def test_a_rank_within_three_times_single_device_s_error_is_not_named() -> None:
    table = healthy((4,), ("bfloat16", "float32"))  # 1.1 times
    for rank, times in ((0, 2.9), (1, 3.1), ((-1, 3), 1e4)):
        table = bend(table, {"tensor": "out", "rank": rank}, error_rel=lambda x, times=times: x * times / 1.1)
    assert facts_of(table).ranks == (1, 3)
