"""`accuracy.drift` on functions of others: a healthy one is not accused, a wrong one is."""

import pytest
import torch

import accuracy
from tests.foreign import my_ring

SMALL = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 32, "device": "cpu"}
pytestmark = pytest.mark.xdist_group("measure")


def float32_inside(q, k, v, *, causal, softmax_scale, group):
    """As a stranger writes it: other layout, float32 inside, no lse."""
    wide = (x.transpose(1, 2).float() for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        *wide, is_causal=causal, scale=softmax_scale, enable_gqa=True
    )
    return out.transpose(1, 2).to(q.dtype)


def wrong_scale(q, k, v, *, causal, softmax_scale, group):
    return float32_inside(q, k, v, causal=causal, softmax_scale=1.05 * softmax_scale, group=group)


def test_a_stranger_s_healthy_function_is_within_and_the_nearer_one() -> None:
    found = accuracy.drift(float32_inside, "ring@4+eager", dtype=["bfloat16", "float16", "float32"], **SMALL)
    rows = found[(found["rank"] == -1) & (found["label"] != "")]
    assert len(rows) == 3 * len({"out", "dq", "dk", "dv"} & set(rows["tensor"])) == 12
    assert (rows["label"] == "within").all()
    assert not ((rows["nearer"] == "b") & (rows["dtype"] != "float32")).any()  # in float32 both round alike


def test_a_wrong_scale_is_beyond_on_either_side() -> None:
    for pair in ((wrong_scale, "eager"), ("eager", wrong_scale), (wrong_scale, float32_inside)):
        found = accuracy.drift(*pair, **SMALL)
        out = found[(found["rank"] == -1) & (found["tensor"] == "out")].iloc[0]
        assert (out["label"], out["nearer"]) == ("beyond", "a" if pair[0] == "eager" else "b")


def test_a_function_is_equal_to_itself_and_its_name_is_its_path() -> None:
    found = accuracy.drift(float32_inside, float32_inside, **SMALL)
    assert set(found["path_a"]) == set(found["path_b"]) == {"float32_inside@1+eager"}
    assert set(found["label"]) <= {"equal", ""}


def test_a_function_of_path_b_has_one_rank_whatever_world_size_is() -> None:
    found = accuracy.drift(my_ring.ring_good, float32_inside, world_size=2, **SMALL)
    assert set(found["path_b"].str.extract(r"(@\d)")[0]) == {"@1"}
    assert set(found["label"]) <= {"within", "equal"}


def test_what_could_not_be_measured_is_a_row_with_the_reason() -> None:
    found = accuracy.drift(["ring@5+eager", "ring@4+eager"], "eager", **SMALL)
    bad = found[found["status"] == "unsupported"]
    assert bad["reason"].str.contains("does not divide").tolist() == [True]

    def refuses(q, k, v):
        raise TypeError("16 bits alone")

    (row,) = accuracy.invariance(refuses, batchmates=2, mask="causal", **SMALL).to_dict("records")
    assert "16 bits alone" in row["reason"]


@pytest.mark.parametrize("call", [
    lambda: accuracy.drift([], "eager", **SMALL),
    lambda: accuracy.drift("ring@2", "single_device", layout="bhsd"),
    lambda: accuracy.invariance("ring@2", batchmates=2, sharding="zigzag"),
    lambda: accuracy.attribute(float32_inside, "zigzag@2"),
    lambda: accuracy.assert_accurate(float32_inside, group="x"),
    lambda: accuracy.assert_accurate(float32_inside, limits=1.5),
])  # fmt: skip
def test_an_argument_that_nothing_uses_is_refused(call) -> None:
    with pytest.raises(accuracy.ConfigError):
        call()
