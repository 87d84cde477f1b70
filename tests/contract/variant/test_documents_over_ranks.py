"""Packed documents over ranks of a user's function: a part of each on every rank, or a slice of all of them."""

from pathlib import Path

import pandas as pd
import pytest

import accuracy
from accuracy.execute.plan import plan
from accuracy.verdict.label import BUGS
from tests.contract.variant import strangers_varlen
from tests.measuring import TINY, configuration, pipeline, refused
from tests.real_ranks import RealRanks

pytestmark = pytest.mark.xdist_group("packages")  # they share the pool
FILE = Path(__file__).with_name("strangers_varlen.py")


def words(function: str, *more: str) -> list[str]:
    return [*TINY, "variant=callable", f"variant.fn={FILE}:{function}", "variant.layout=thd", "world=processes",
            "kernel=eager", "problem.batch=2", *more]  # fmt: skip


def measure(pool: RealRanks, function: str, *more: str) -> pd.DataFrame:
    by, plans = pipeline(pool.run), plan(configuration(*words(function, "dtype=float64", *more)), None)
    assert not [each.unsupported for each in plans if each.unsupported]
    return pd.DataFrame([row for each in plans for row in by.measure(each.case).rows])


ZIGZAG = ("variant.sharding=zigzag",)


@pytest.mark.parametrize(
    ("function", "documents", "more"),
    [
        ("ring", "24+40", ()), ("zigzag", "24+40", ZIGZAG), ("llama3", "24+40", ()), ("llama3", "5+38+21", ()),
        ("llama3", "", ()), ("whole", "21+40+3", ZIGZAG),  # told of all borders; padded to 24, 40 and 4 on two ranks
        ("whole_without_padding", "24+40", (*ZIGZAG, "variant.layout=thd_whole")),
    ],
)  # fmt: skip
def test_documents_of_every_rank_are_the_reference_in_float64(
    pool: RealRanks, function: str, documents: str, more: tuple[str, ...]
) -> None:
    """1e-12 is 10^4 units of float64 and 10^-7 of a lost key."""
    more += (f"problem.documents={documents}",) if documents else ()
    rows = measure(pool, function, "world_size=[1,2,4]", "problem.mask=[causal,full]", "problem.seqlen=64", *more)
    assert set(rows["status"]) == {"ok"}
    assert rows["error_rel"].max() < 1e-12


def test_keys_that_pad_a_document_and_are_counted_are_found(pool: RealRanks) -> None:
    how = "problem.documents=21+43", "variant.sharding=zigzag", "problem.seqlen=64", "problem.mask=full", "world_size=2"
    found = measure(pool, "whole_padding_is_counted", *how)
    assert {"out", "lse", "dq", "dk", "dv"} <= set(found.loc[found["error_rel"] > 1e-3, "tensor"])


def test_padding_behind_documents_is_not_counted(pool: RealRanks) -> None:
    how = "problem.documents=30+32", "problem.seqlen=62", "problem.padding=end", "problem.mask=full", "world_size=4"
    assert measure(pool, "llama3", *how)["error_rel"].max() < 1e-12


def test_a_border_that_one_rank_has_wrong_is_found(pool: RealRanks) -> None:
    """Rows are of the tokens that the rank has: those of the other rank's queries are right."""
    function = "a_border_is_off_by_one_on_rank_one"
    found = measure(pool, function, "problem.documents=24+40", "problem.seqlen=64", "problem.batch=1", "world_size=2")
    assert {"out", "lse", "dq", "dk", "dv"} <= set(found.loc[found["error_rel"] > 1e-3, "tensor"])
    of_queries = found[found["tensor"].isin(["out", "lse", "dq"])].groupby("rank")["error_rel"].max()
    assert of_queries[0] < 1e-12 < 1e-3 < of_queries[1]


def test_the_public_entries_take_documents_over_ranks_and_accuse_the_one_function_that_is_wrong() -> None:
    how = {"layout": "thd", "documents": "24+40", "seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 16}
    functions = strangers_varlen.ring, strangers_varlen.a_border_is_off_by_one_on_rank_one
    found = accuracy.diagnose(accuracy.measure(functions, world_size=2, dtype="float32", **how)).verdicts  # type: ignore[arg-type]
    assert {*found.loc[found["label"].isin(BUGS), "variant"]} == {functions[1].__name__}


def test_documents_that_ranks_cannot_share_are_told_in_a_line() -> None:
    for more, told in (
        (("world_size=3", "problem.padding=end"), "cuts each document into 3 parts: 40 is no multiple of it"),
        (("world_size=2", "variant.sharding=30+34"), "use sharding=contiguous"),
    ):
        assert told in refused(*words("ring", "problem.documents=24+40", "problem.seqlen=64", *more))
