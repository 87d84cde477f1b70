"""Masks, sinks, padding and unequal shards over ranks: a slip in each is seen, the table says what held."""

from pathlib import Path

import pytest

from accuracy.core.case import Problem
from accuracy.core.masks import Visibility
from tests import planting
from tests.measuring import TINY, case_of, measure, pipeline

TENSORS = ["out", "dq", "dk", "dv"]
TWO = ("world_size=2", "dtype=float64")
UNEVEN = ("problem.seqlen=96", "world_size=3", "dtype=float64")
LENGTHS = {"40+20+36": (40, 20, 36), "1+94+1": (1, 94, 1)}


def sinks_of_one_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("accuracy.kernel.block.calls.sink_total", lambda parts: parts[0])


def padding_is_seen(patch: pytest.MonkeyPatch) -> None:
    """Zeros are keys of a full mask: what a schedule does that takes padding for tokens."""
    patch.setattr(Problem, "visibility", Visibility(causal=False))


PADDED = ("problem.seqlen=95", "problem.padding=end", "problem.mask=full")
SLIPS = [  # variant, problem, slip, tensors that must show it, by how much
    ("ring", ("problem.sinks=1",), sinks_of_one_rank, ["dsink"], 1e-2),
    ("ring", PADDED, padding_is_seen, TENSORS, 1e-3),
]


@pytest.mark.parametrize(("variant", "problem", "slip", "tensors", "least"), SLIPS)
def test_a_slip_is_seen(variant, problem, slip, tensors, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (f"variant={variant}", *TWO, *problem)
    assert measure(*words)["error_rel"].max() < 1e-12
    slip(monkeypatch)
    assert measure(*words).set_index("tensor")["error_rel"][tensors].groupby("tensor").max().min() > least


def reference_squares(lengths: tuple[int, ...], *words: str) -> list[float]:
    """The mean square of each rank's tokens of the reference's out."""
    out = pipeline().targets(case_of(*TINY, *words)).reference["out"]
    return [float(x.square().mean()) for x in out.split(lengths, 1)]


def test_padding_is_not_measured_but_must_be_finite(tmp_path: Path) -> None:
    """Of 33 tokens two ranks have 17 and 16; a mean is over those. The out of padding is thrown away."""
    words = ("world_size=2", "dtype=float32", "problem.seqlen=33", "problem.padding=end")
    plain = measure("variant=ring", *words).set_index(["tensor", "rank"])
    assert plain["worst_token"].max() < 33
    squares = plain.loc["out"].loc[[0, 1], "reference_rms"] ** 2
    assert squares.to_list() == pytest.approx(reference_squares((17, 16), "variant=ring", *words), rel=1e-9)
    for value, status in (("7.0", "ok"), ("float('nan')", "failed")):
        returned = "running.result(rank.dtype, rank.lse_dtype)"
        changed = (
            f"out, lse = {returned}\n        out[:, 33 - 17 * rank.world.rank :] = {value}\n        return out, lse"
        )
        planting.slip(tmp_path / status, "ring", f"return {returned}", changed)
        found = measure("variant=broken", *words, folders=[tmp_path / status])
        assert set(found["status"]) == {status}
        if status == "ok":
            found = found.set_index(["tensor", "rank"])
            assert (found.loc["out", "error_rel"] == plain.loc["out", "error_rel"]).all()


def test_settings_that_change_nothing_are_the_same_case() -> None:
    """A window as wide as the sequence, one document, an alignment of as many queries as keys."""
    same = ("problem.window=95", "problem.documents=96", "problem.mask=causal_top_left", "problem.seqlen_q=96")
    cases = [case_of(*TINY, "variant=single_device", "world_size=1", *words) for words in ((), *zip(same, strict=True))]
    assert len({case.id for case in cases}) == 1


MASKS = {
    "causal": (), "full": ("problem.mask=full",), "window": ("problem.window=7",),
    "documents": ("problem.documents=30+41+25", "problem.softcap=2.0"),
}  # fmt: skip


@pytest.mark.stress(5, "variant", "mask")
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("variant", ["ring", "llama3", "llama3_ring"])
def test_ranks_may_hold_unequally_many_tokens(variant: str, mask: str, lengths: str) -> None:
    """A rank's mean is over its own tokens."""
    words = f"variant={variant}", f"variant.{variant}.sharding={lengths}", *UNEVEN, *MASKS[mask]
    found = measure(*words)
    assert set(found["status"]) == {"ok"}
    assert found["error_rel"].max() < 1e-12
    squares = found[(found["tensor"] == "out") & (found["rank"] >= 0)].sort_values("rank")["reference_rms"] ** 2
    expected = reference_squares(LENGTHS[lengths], *words)
    assert squares.to_list() == pytest.approx(expected, rel=1e-9)
