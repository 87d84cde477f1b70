"""A ring that is wrong from 3 ranks on is found in every way in which a newcomer would try it; a right one never is.
What a stranger types: functions by name, as an axis, from the current folder."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import accuracy
from accuracy.core import fields
from accuracy.results import table
from tests.command_line import TINY, CommandLine
from tests.measuring import only_grids
from tests.processes import launched
from tests.slow.foreign import ring

pytestmark = pytest.mark.xdist_group("foreign")
SMALL = {"seqlen": 96, "heads": 4, "heads_kv": 2, "head_dim": 16}
RINGS: dict[str, Callable[..., Any]] = {"right": ring.right, "wrong": ring.wrong_from_three_ranks_on}


def test_by_the_assertion_and_the_fixture(accuracy_gate: Callable[..., Any]) -> None:
    assert set(accuracy.assert_accurate(ring.right, **SMALL)["world_size"]) == {1, 2, 3, 4}
    with pytest.raises(AssertionError, match=r"bfloat16, 3 ranks"):
        accuracy.assert_accurate(ring.wrong_from_three_ranks_on, world_size=[2, 3], **SMALL)
    with pytest.raises(BaseException, match=r"bfloat16 W=3"):
        accuracy_gate(ring.wrong_from_three_ranks_on, seeds=[0, 1], world_size=3, **SMALL)


DIAGNOSED = ("experiment=diagnose", "dtype=bfloat16", "world_size=[2,3]")


@pytest.mark.parametrize(("words", "name"), [
    (DIAGNOSED, "wrong"), *(pytest.param(*each, marks=pytest.mark.stress) for each in (
        (DIAGNOSED, "right"), ((), "right"), ((), "wrong"))),
])  # fmt: skip
def test_by_the_command(
    words: tuple[str, ...], name: str, accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a diagnosis from Python: `odd_size` of `test_foreign`."""
    monkeypatch.setattr("accuracy.config.resolve.with_given", only_grids("seeds"))
    problem = [f"problem.{key}={value}" for key, value in SMALL.items()]
    fn = f"variant.fn=tests.slow.foreign.ring.{RINGS[name].__name__}"
    done = accuracy(*words, "variant=callable", fn, *problem, "output_dir=run", "device=cpu")
    assert done.status == (5 if words and name == "wrong" else 0), done
    assert ("dk and dv are wrong" in done.out) == (name == "wrong"), done.out


SUITE = """
from accuracy import assert_accurate
from tests.contract.variant import somebody

SMALL = {"seqlen": 48, "heads": 4, "heads_kv": 2, "head_dim": 16}

def test_broken():
    assert_accurate(somebody.rank_one_doubles_dq, dtype="float32", world_size=2, **SMALL)

def test_raising():
    assert_accurate(somebody.rank_one_raises, dtype="float32", world_size=2, **SMALL)
"""
LAUNCHED = """
import pytest
import accuracy
from accuracy.cli import run
from accuracy.config import resolve
from tests.measuring import only_grids
from tests.slow.foreign.ring import picky

resolve.with_given = only_grids("shape_one")
found = accuracy.diagnose(picky, seqlen=32, heads=4, heads_kv=2, device="cpu", world_size=2)
failed = found.results[(found.results["status"] == "failed") & ~found.results["dtype"].isin(["float32", "float64"])]
refused = any("mask=full" in each and "head_dim=8" in each for each in found.evidence)
print(f"asked: {found.label} {len(failed)} {refused}", flush=True)
pytest.main(["-q", "-p", "no:cacheprovider", "test_suite.py"])
run.main()
"""


def test_launched_it_is_asked_what_it_takes_and_of_an_assertion_the_first_rank_names_the_worst(tmp_path: Path) -> None:
    """Asked from Python and by the command line; with the assertion every rank fails."""
    (tmp_path / "script.py").write_text(LAUNCHED)
    (tmp_path / "test_suite.py").write_text(SUITE)
    words = ("experiment=diagnose", "variant=callable", "variant.fn=tests.slow.foreign.ring.picky", "world_size=2")
    more = ("device=cpu", "dtype=bfloat16", "problem.mask=causal", "report=false", "problem.seqlen=32",
            "problem.heads=4", "problem.heads_kv=2")  # fmt: skip
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    first, other = launched(2, "script.py", *words, *more, folder=tmp_path, **alone)
    for rank in (first, other):
        assert rank.returncode == 0, rank.stderr
        assert re.findall(r"^asked: (\w+) (\w+) (\w+)$", rank.stdout, re.MULTILINE) == [("rounding", "0", "True")], rank
    assert re.search("Not taken, so not asked: .*head_dim=8", first.stdout), first.stdout
    output = first.stdout + other.stdout
    assert output.count("2 failed in") == 2, output
    assert len(re.findall("E .*dq is .* times as far from float64 .*, on rank 1 .* times", output)) == 1
    assert len(re.findall("E .*rank 1: ValueError: on purpose", output)) == 1
    assert len(re.findall("E .*not accurate: rank 0 says where", output)) == 2
    assert "def assert_accurate" not in output  # none of the tool's source


MODULE = """
from torch.nn.functional import scaled_dot_product_attention

def right(q, k, v, *, causal, softmax_scale, group):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True).transpose(1, 2)

def wrong(q, k, v, **how):
    return right(q, k, v, **how) * 1.25
"""


def test_functions_of_a_folder_are_an_axis_told_apart(accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the current folder on Python's path, as an installed command is started."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for name in ("stranger", "other"):
        (accuracy.folder / f"{name}.py").write_text(MODULE)
    words = ["variant=[ring,callable]", "variant.fn=[stranger.right,stranger.wrong,other.py:right]", "dtype=float32",
             "world_size=1", "output_dir=run", *TINY]  # fmt: skip
    done = accuracy(*words)
    assert done.status == 0, done.err
    rows = table.read_results(accuracy.folder / "run")
    outs = rows[(rows["tensor"] == "out") & (rows["rank"] == 0)].set_index("variant", drop=False)
    here = dict.fromkeys(("stranger.right", "stranger.wrong", "other.right"), "processes")
    assert dict(outs["world"]) == {"ring": "simulated", **here}
    assert outs.loc["stranger.wrong", "error_rel"] == pytest.approx(0.25, rel=1e-5)
    again = fields.words(outs.loc["stranger.wrong"].to_dict())
    assert {"variant=callable", "variant.callable.fn=stranger.wrong", "variant.sharding=contiguous"} <= set(again)
