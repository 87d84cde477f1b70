"""`accuracy.drift` and `accuracy.invariance` on functions of others: a healthy one is not accused, a wrong one is."""

import pytest

import accuracy
from tests.slow.foreign.functions import eager_out

SMALL = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 32, "device": "cpu"}
pytestmark = pytest.mark.xdist_group("measure")


def wrong_scale(q, k, v, *, softmax_scale, causal, group):
    return eager_out(q, k, v, causal=causal, softmax_scale=1.05 * softmax_scale, group=group)


def test_a_stranger_s_healthy_function_is_within_and_the_nearer_one() -> None:
    found = accuracy.drift(eager_out, "ring@4+eager", dtype=["bfloat16", "float16", "float32"], **SMALL)
    rows = found[(found["rank"] == -1) & (found["label"] != "")]
    assert len(rows) == 3 * len({"out", "dq", "dk", "dv"} & set(rows["tensor"])) == 12
    assert (rows["label"] == "within").all()
    assert not ((rows["nearer"] == "b") & (rows["dtype"] != "float32")).any()  # in float32 both round alike


def test_a_wrong_scale_is_beyond_on_either_side_and_a_path_has_its_function_s_name() -> None:
    for pair in ((wrong_scale, "eager"), ("eager", wrong_scale), (wrong_scale, eager_out)):
        found = accuracy.drift(*pair, **SMALL)
        out = found[(found["rank"] == -1) & (found["tensor"] == "out")].iloc[0]
        assert (out["label"], out["nearer"]) == ("beyond", "a" if pair[0] == "eager" else "b")
    assert set(found["path_b"]) == {"eager_out@1+eager"}


def test_what_could_not_be_measured_is_a_row_with_the_reason() -> None:
    found = accuracy.drift(["ring@5+eager", "ring@4+eager"], "eager", **SMALL)
    assert found.loc[found["status"] == "unsupported", "reason"].str.contains("does not divide").tolist() == [True]
