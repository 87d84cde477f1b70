"""The planted faults, as strangers' functions on real ranks: each is named in its tensors, with no wrong cause."""

from pathlib import Path

import pytest

import accuracy
from accuracy.results import table
from accuracy.results.table import TENSORS
from tests.fault import rates
from tests.foreign.test_foreign import SMALL
from tests.foreign.twins import TWINS

pytestmark = pytest.mark.xdist_group("foreign")


@pytest.mark.stress(1)
@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_named_in_the_tensors_that_are_wrong_with_no_wrong_cause(name: str, tmp_path: Path) -> None:
    twin = TWINS[name]
    wrong = twin.wrong.split()
    may_be = {*wrong, *twin.may.split()}
    may_be |= {"delta"} if "out" in may_be else set()
    how = {"layout": twin.layout, "world_size": list(twin.ranks), "output_dir": tmp_path / "run"}
    found = accuracy.diagnose({name: twin.fn}, **how, **SMALL)
    right = [tensor for tensor in TENSORS if tensor not in may_be]
    assert rates.detection(name, dict.fromkeys(wrong, ""), found.verdicts, right).caught, found.sentence
    assert twin.says in found.sentence
    cause = rates.explanation(name, twin.causes, table.read_side(tmp_path / "run", "hypotheses"), found.results)
    assert cause.right or not cause.proven, found.sentence
