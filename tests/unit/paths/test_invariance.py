"""Where bits change is found at the value where a kernel changes them, and nowhere else."""

import pandas as pd
import pytest
import torch

import accuracy

SMALL = {"seqlen": 48, "heads": 4, "heads_kv": 2, "head_dim": 16, "device": "cpu"}
pytestmark = pytest.mark.xdist_group("measure")


def attention(q, k, v, *, causal, softmax_scale, group=None):
    """float64 inside, and every row's bits are its own."""
    queries, keys, values = (x.transpose(1, 2).double() for x in (q, k, v))
    keys, values = (x.repeat_interleave(queries.shape[1] // x.shape[1], 1) for x in (keys, values))
    scores = softmax_scale * (queries.unsqueeze(-2) * keys.unsqueeze(-3)).sum(-1)
    if causal:
        rows, columns = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(rows, columns, dtype=torch.bool).triu(1 + columns - rows), -torch.inf)
    return ((scores.softmax(-1).unsqueeze(-1) * values.unsqueeze(-3)).sum(-2)).transpose(1, 2).to(q.dtype)


def planted(of, at: int):
    """Rounds otherwise from a shape of the call on, as a heuristic that chooses another kernel."""

    def switching(q, k, v, *, causal, softmax_scale, group):
        out = attention(q, k, v, causal=causal, softmax_scale=softmax_scale)
        return out * (1 + 2**-6) if of(q, k) >= at else out

    return switching


def values(found: pd.DataFrame) -> list[int]:
    return sorted(set(found["value"].dropna()))


def test_a_planted_switch_is_found_at_its_value_and_nowhere_else() -> None:
    for axis, of, at, expected in (
        ("batchmates", lambda q, k: q.shape[0], 6, 5),  # a batch of 6 has 5 batch-mates
        ("length", lambda q, k: k.shape[1], 48 + 11, 11),
        ("queries", lambda q, k: q.shape[1], 23, 23),
    ):
        found = accuracy.invariance(planted(of, at), **{axis: 32}, **SMALL)
        assert values(found) == [expected], axis
        out = found[found["tensor"] == "out"].iloc[0]
        assert out["before"] == expected - 1
        assert out["nearer"] in ("before", "neither")  # of one query there are 4 rows: too few to tell
        assert out["differ"] > 0


def test_a_function_whose_rows_are_their_own_has_no_boundary() -> None:
    found = accuracy.invariance(attention, batchmates=9, order=4, length=17, queries=48, **SMALL)
    assert values(found) == []
    assert found["axis"].tolist() == ["batchmates", "order", "length", "queries"]
    assert (found["runs"] > 3).all()
    assert (found["reason"] == "").all()


def test_a_place_in_the_batch_that_is_treated_otherwise_is_found() -> None:
    def last_is_coarse(q, k, v, **how):
        out = attention(q, k, v, **how)
        return torch.cat([out[:3], out[3:] * (1 + 2**-7)])

    assert values(accuracy.invariance(last_is_coarse, order=7, **SMALL)) == [3]


def test_parts_of_the_keys_change_bits_from_two_on() -> None:
    found = accuracy.invariance(["eager", "decode+eager"], splits=5, pages=16, **SMALL)
    splits = found[found["axis"] == "splits"]
    assert splits.groupby("path")["value"].min().to_dict() == {"single_device@1+eager": 2, "decode@1+eager": 2}
    assert found.loc[found["axis"] == "pages", "value"].notna().any()
    one = accuracy.invariance("torch_flash", batchmates=2, **SMALL | {"heads": 1, "heads_kv": 1})
    assert (one["reason"] == "").all()  # the lse of one head comes with a stride of its own


def test_what_cannot_be_varied_says_why() -> None:
    def only_one(q, k, v, **how):
        if q.shape[0] > 3:
            raise ValueError("at most 3 sequences")
        return attention(q, k, v, **how)

    (ring,) = accuracy.invariance("ring@2+eager", splits=4, **SMALL)["reason"]
    assert ring == "variant ring has no splits; use decode, chunked_prefill or single_device"
    (full,) = accuracy.invariance("eager", length=4, mask="full", **SMALL)["reason"]
    assert full.startswith("needs problem.mask=causal")
    (refused,) = accuracy.invariance(only_one, batchmates=8, **SMALL)["reason"]
    assert refused.startswith("batchmates=")
    assert "at most 3 sequences" in refused
    with pytest.raises(accuracy.ConfigError, match="nothing is varied"):
        accuracy.invariance("eager", **SMALL)
