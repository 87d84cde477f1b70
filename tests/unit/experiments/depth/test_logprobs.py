"""A language model on two paths: estimates of KL agree with KL, equal paths have none, a wrong path shows."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.unit.experiments.depth.stacks import both, planned

KERNEL = """
from dataclasses import dataclass, replace
from accuracy.kernel.eager import Eager

@dataclass(frozen=True)
class Wrong(Eager):
    def _forward(self, q, k, v, how):
        return super()._forward(q, k, v, replace(how, scale=3 * how.scale))

KERNEL = Wrong
"""


def words(*given: str) -> pd.DataFrame:
    """Rows by depth."""
    rows, found = both(planned(*given))
    assert set(rows["status"]) == {"ok"}, rows["reason"]
    return found.set_index("depth")


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("mine")
    part = folder / "wrong_kernel.py"
    part.write_text(KERNEL)
    (right,) = planned("path_a=eager", "path_b=eager", "problem.seqlen=256")
    assert right.case.against is not None
    kernel = replace(right.case.against.kernel, name="wrong", source=str(part))
    case = replace(right.case, against=replace(right.case.against, kernel=kernel))
    return both([replace(right, case=case)])[1].set_index("depth")


def test_equal_paths_have_equal_log_probabilities() -> None:
    found = words("path_a=ring@2+eager", "path_b=ring@2+eager")
    assert found.index.tolist() == [1, 2, 3]
    assert (found[["mean", "max", "k1", "k3", "kl", "outside"]] == 0).all().all()
    assert (found["error_a"] == found["error_b"]).all()


def test_the_estimates_agree_with_kl(wrong: pd.DataFrame) -> None:
    """Means over 512 words of one distribution each: within 4 standard errors, a chance of 6e-5 each."""
    for name in ("k1", "k3"):
        assert ((wrong[name] - wrong["kl"]).abs() < 4 * wrong[f"{name}_se"]).all()
    assert (wrong["kl"] > 0).all()
    assert (wrong["k3"] > 0).all()


def test_a_wrong_path_is_outside_and_further_from_float64(wrong: pd.DataFrame) -> None:
    assert (wrong["outside"] > 0).any()
    assert (wrong["error_b"] > 3 * wrong["error_a"]).all()
    assert (wrong["attention_b"] > 3 * wrong["rest"]).all()


def test_a_function_and_a_path_a_without_a_backward_are_refused() -> None:
    (decoding,) = planned("path_a=decode+eager", "path_b=eager")
    assert "gives no gradients" in str(decoding.unsupported)
    (function,) = planned("path_a=eager", "path_b=tests.slow.foreign.functions:eager@1")
    assert "a function has no place in a stack" in str(function.unsupported)
