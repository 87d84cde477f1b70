"""A language model on two paths: estimates of KL agree with KL, equal paths have none, a wrong path shows."""

from pathlib import Path

import pandas as pd
import pytest

from accuracy.execute.plan import plan
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from tests import planting
from tests.measuring import configuration
from tests.stack.stacks import SMALL

KERNEL = """
from dataclasses import dataclass, replace
from accuracy.kernel.eager import Eager

@dataclass(frozen=True)
class Wrong(Eager):
    def _forward(self, q, k, v, how):
        return super()._forward(q, k, v, replace(how, scale=3 * how.scale))

KERNEL = Wrong
"""


def words(*given: str, folder: Path | None = None) -> pd.DataFrame:
    """Rows by depth."""
    folders = [folder] if folder else []
    (each,) = plan(configuration(*SMALL, *given, folders=folders), None)
    measured = Pipeline("test", Cache(None, 0.0)).measure(each.case)
    assert measured.status == "ok", measured.traceback
    return pd.DataFrame(measured.table("logprobs")).set_index("depth")


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = planting.part(tmp_path_factory.mktemp("mine"), "kernel", "wrong", KERNEL, "probability_dtype: input\n")
    return words("path_a=eager", "path_b=single_device+wrong", "problem.seqlen=256", folder=folder)


def test_equal_paths_have_equal_log_probabilities() -> None:
    found = words("path_a=ring@2+eager", "path_b=ring@2+eager")
    assert found.index.tolist() == [1, 2, 3]
    assert (found[["mean", "max", "k1", "k3", "kl", "outside"]] == 0).all().all()
    assert (found["error_a"] == found["error_b"]).all()


def test_the_estimates_agree_with_kl_and_a_wrong_path_is_outside_and_further_from_float64(wrong: pd.DataFrame) -> None:
    """Means over 512 words of one distribution each: within 4 standard errors, a chance of 6e-5 each."""
    for name in ("k1", "k3"):
        assert ((wrong[name] - wrong["kl"]).abs() < 4 * wrong[f"{name}_se"]).all()
    assert (wrong["kl"] > 0).all()
    assert (wrong["k3"] > 0).all()
    assert (wrong["outside"] > 0).any()
    assert (wrong["error_b"] > 3 * wrong["error_a"]).all()
    assert (wrong["attention_b"] > 3 * wrong["rest"]).all()


def test_a_depth_is_the_stack_of_so_many_layers() -> None:
    """Same weights and words: the layers below a head do not depend on those above it; words are drawn anew."""
    deep, shallow = (words("path_a=ring@2+eager", "path_b=decode+eager", f"stack.layers={n}") for n in (3, 1))
    assert deep.loc[1].drop("case_id").to_dict() == shallow.loc[1].drop("case_id").to_dict()


def test_float16_is_nearer_than_bfloat16() -> None:
    """11 bits for 8: a factor of 8, of which half is asked."""
    coarse, fine = (words("path_a=zigzag@3+eager", "path_b=decode+eager", f"dtype={each}") for each in
                    ("bfloat16", "float16"))  # fmt: skip
    assert (coarse["rms"] > 4 * fine["rms"]).all()
