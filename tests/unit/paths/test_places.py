"""Planted drifts are named exactly: the place that makes them, all of them, and no decoy."""

from pathlib import Path

import pandas as pd
import pytest

import accuracy
from accuracy.paths.table import places_text
from tests import planting
from tests.measuring import TINY, case_of, pipeline

KERNEL = '''
import struct
from dataclasses import dataclass, replace
from accuracy.kernel.eager import Eager

@dataclass(frozen=True)
class Planted(Eager):
    """scale_dtype, other_order: planted; decoy: changes nothing."""
    scale_dtype: str = "float64"
    other_order: bool = False
    decoy: int = 0

    def _forward(self, q, k, v, how):
        if self.scale_dtype == "float32":
            how = replace(how, scale=struct.unpack("f", struct.pack("f", how.scale))[0])
        return super()._forward(q, *((x.flip(1) if self.other_order else x) for x in (k, v)), how)

KERNEL = Planted
'''
SMALL = {"seqlen": 32, "heads": 2, "heads_kv": 2, "head_dim": 8, "device": "cpu"}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    planting.part(tmp_path, "kernel", "planted", KERNEL, "decoy: 0\n")
    return tmp_path


def attributed(folder: Path, a: str, b: str, *words: str) -> pd.DataFrame:
    given = ("device=cpu", "problem.mask=full", "reruns.places=true", f"path_a={a}", f"path_b={b}", *words)
    measured = pipeline().measure(case_of(*TINY, *given, folders=[folder]))
    assert measured.status == "ok", measured.traceback
    return pd.DataFrame(measured.table("places"))


def test_a_planted_place_is_named_and_the_decoy_is_not_and_of_two_both_are_needed(mine: Path) -> None:
    scale, order = "scale_dtype:float32", "other_order:true"
    for setting, place in ((scale, "kernel.scale_dtype"), (order, "kernel.other_order")):
        found = attributed(mine, "planted", f"single_device+planted/decoy:5/{setting}", "dtype=float64")
        forward = found[found["tensor"].isin(["out", "lse"])].set_index(["tensor", "place"])
        assert set(forward["shortest"]) == {place}
        assert forward["verified"].all()
        assert (forward["left"] == 0).all()
        shares = forward["share"].unstack()
        assert shares[place].tolist() == pytest.approx([1.0, 1.0])
        assert shares["kernel.decoy"].tolist() == pytest.approx([0.0, 0.0])
    found = attributed(mine, "planted", f"single_device+planted/decoy:5/{order}/{scale}", "dtype=float64")
    out = found[found["tensor"] == "out"].set_index("place")
    assert set(out["shortest"]) == {"kernel.other_order, kernel.scale_dtype"}
    assert out["share"].sum() == pytest.approx(1.0)  # Shapley's shares add up
    assert out["share"]["kernel.scale_dtype"] > 0.99  # 2^-25 of a score against 2^-53


@pytest.mark.parametrize(("place", "a", "b"), [
    ("options.splits", "split_kv/splits:3+eager", "split_kv/splits:4+eager"),
    ("forward.ring_direction", "ring@4+eager", "ring/ring_direction:previous/merge:sigmoid@4+eager"),
    ("forward.merge", "ring@4+eager", "ring/merge:logsumexp@4+eager"),
    ("kernel", "eager", "torch_math"), ("schedule", "single_device+eager", "ring@4+eager"),
    ("kernel.probability_dtype", "eager", "single_device+eager/probability_dtype:accumulate"),
])  # fmt: skip
def test_another_split_merge_or_order_is_named(a: str, b: str, place: str) -> None:
    found = accuracy.attribute(a, b, **{**SMALL, "mask": "full"})
    out = found[found["tensor"].isin(["out", "lse"])]
    assert set(out["shortest"]) == {place}
    assert out["verified"].all()
    best = out.loc[out.groupby("tensor")["share"].idxmax()]
    assert set(best["place"]) == {place}
    assert place in places_text(found)


def test_what_has_no_places_says_so() -> None:
    assert accuracy.attribute("ring@2+eager", "ring@2+eager", **SMALL).empty
    with pytest.raises(accuracy.ConfigError, match="is a function, which has no places"):
        accuracy.attribute(lambda q, k, v, **how: q, "eager", **SMALL)
