"""A tolerance that is advised passes healthy kernels of other seeds and notices planted faults; mistakes are a line."""

import pytest

import accuracy
from accuracy.cli import tolerance as command
from tests.command_line import line_of

SHAPE = (1, 96, 2, 16)
TENSORS = ["out", "lse", "dq", "dk", "dv"]


@pytest.mark.parametrize(
    ("dtype", "against", "factor"), [("bfloat16", "float64", 2**-4), ("float32", "float32", 2**-18)]
)
def test_healthy_kernels_of_other_seeds_pass_and_faults_do_not(dtype: str, against: str, factor: float) -> None:
    """2^-4 is 16 roundoffs of bfloat16: scores and weights in it take 2 or 3, six standard deviations the rest. For
    one kernel it is stricter."""
    rows = accuracy.tolerance(SHAPE, dtype, heads_kv=1, against=against, seeds=4).set_index("tensor")
    assert rows.index.to_list() == TENSORS
    assert (rows["false_alarms"] == 0).all()
    assert (rows["at_most"] == 3 / rows["runs"]).all()
    assert rows["runs"].min() >= 4 * 4  # eager, chunked, torch's two
    assert rows[["zeros", "shifted"]].all(axis=None)
    assert (rows["least_factor"] <= factor).all()
    assert (rows["least_factor_elements"].fillna(1) >= rows["least_factor"]).all()
    assert (rows[["atol", "relative", "row_rms"]] > 0).all(axis=None)
    if dtype == "bfloat16":
        mine = accuracy.tolerance(SHAPE, dtype, heads_kv=1, kernel="torch_math", seeds=3).set_index("tensor")
        assert (mine["relative"] < rows["relative"])[["out", "dq", "dk"]].all()


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (["q_shape=1,8,2", "dtype=float32"], "give (batch, tokens, heads, head dim)"),
        (["q_shape=1,8,2,4", "dtype=float32", "kernel=egaer"], "did you mean eager?"),
        (["q_shape=1,8,3,4", "dtype=float32", "heads_kv=2"], "allowed: what divides 3 heads"),
    ):
        assert command.main(words) == 2
        assert told in line_of(capsys, "accuracy tolerance")
