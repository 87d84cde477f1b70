"""`accuracy.drift` on functions of others: a healthy one is not accused, a wrong one is."""

import pytest
import torch

import accuracy

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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_stranger_s_healthy_function_is_within_and_the_nearer_one(dtype: str) -> None:
    found = accuracy.drift(float32_inside, "ring@4+eager", dtype=dtype, **SMALL)
    whole = found[(found["rank"] == -1) & (found["label"] != "")].set_index("tensor")
    assert set(whole.index) == {"out", "dq", "dk", "dv"}
    assert (whole["label"] == "within").all()
    assert not (whole["nearer"] == "b").any() or dtype == "float32"  # where both round alike


def test_a_wrong_scale_is_beyond_on_either_side() -> None:
    for pair in ((wrong_scale, "eager"), ("eager", wrong_scale), (wrong_scale, float32_inside)):
        found = accuracy.drift(*pair, **SMALL)
        out = found[(found["rank"] == -1) & (found["tensor"] == "out")].iloc[0]
        assert (out["label"], out["nearer"]) == ("beyond", "a" if pair[0] == "eager" else "b")


def test_a_function_is_equal_to_itself_and_its_name_is_its_path() -> None:
    found = accuracy.drift(float32_inside, float32_inside, **SMALL)
    assert set(found["path_a"]) == set(found["path_b"]) == {"float32_inside@1+eager"}
    assert set(found["label"]) <= {"equal", ""}


def test_what_cannot_run_is_a_row_with_the_reason() -> None:
    found = accuracy.drift(["ring@5+eager", "ring@4+eager"], "eager", **SMALL)
    bad = found[found["status"] == "unsupported"]
    assert bad["reason"].str.contains("does not divide").tolist() == [True]


def test_nothing_to_compare_is_one_line() -> None:
    with pytest.raises(accuracy.ConfigError, match="nothing to measure"):
        accuracy.drift([], "eager", **SMALL)
