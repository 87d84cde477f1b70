"""A tolerance that is advised passes healthy kernels of other seeds and notices planted faults; mistakes are a line."""

import pytest

import accuracy
from accuracy.cli import tolerance as command
from accuracy.core.errors import ConfigError

SHAPE = (1, 96, 2, 16)


@pytest.mark.parametrize(
    ("dtype", "against", "factor"), [("bfloat16", "float64", 2**-4), ("float32", "float32", 2**-18)]
)
def test_healthy_kernels_of_other_seeds_pass_and_faults_do_not(dtype: str, against: str, factor: float) -> None:
    """2^-4 is 16 roundoffs of bfloat16: scores and weights in it take 2 or 3, six standard deviations the rest."""
    rows = accuracy.tolerance(SHAPE, dtype, heads_kv=1, against=against, seeds=4).set_index("tensor")
    assert rows.index.to_list() == ["out", "lse", "dq", "dk", "dv"]
    assert (rows["false_alarms"] == 0).all()
    assert (rows["at_most"] == 3 / rows["runs"]).all()
    assert rows["runs"].min() >= 4 * 4  # eager, chunked, torch's two
    assert rows[["zeros", "shifted"]].all(axis=None)
    assert rows.drop("lse")["dropped_key"].all()
    assert (rows["least_factor"] <= factor).all()
    assert (rows["least_factor_elements"].fillna(1) >= rows["least_factor"]).all()
    assert (rows[["atol", "relative", "row_rms"]] > 0).all(axis=None)


def test_a_tolerance_for_one_kernel_is_the_stricter_one() -> None:
    mine, any_of = (
        accuracy.tolerance(SHAPE, "bfloat16", kernel=kernel, seeds=3).set_index("tensor")
        for kernel in ("torch_math", None)
    )
    assert (mine.loc[["out", "dq", "dk"], "relative"] < any_of.loc[["out", "dq", "dk"], "relative"]).all()


def test_the_command_prints_a_line_for_each_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["q_shape=1,48,2,16", "dtype=float32", "seeds=2", "kernel=eager,chunked", "mask=full"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["out", "lse", "dq", "dk", "dv"]
    assert all("0 of 4 (<= 0.75)" in line and "all refused" in line for line in lines[1:6])


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (["q_shape=1,8,2", "dtype=float32"], "give (batch, tokens, heads, head dim)"),
        (["q_shape=1,8,2,x", "dtype=float32"], "is no number"),
        (["q_shape=1,8,2,4"], "dtype is missing"),
        (["q_shape=1,8,2,4", "dtype=int8"], "dtype 'int8' is unknown"),
        (["q_shape=1,8,2,4", "dtype=float32", "inputs=gausian"], "did you mean gaussian?"),
        (["q_shape=1,8,2,4", "dtype=float32", "kernel=egaer"], "did you mean eager?"),
        (["q_shape=1,8,3,4", "dtype=float32", "heads_kv=2"], "allowed: what divides 3 heads"),
        (["q_shape=1,8,2,4", "dtype=float32", "seeds=0"], "whole numbers from 1"),
        (["q_shap=1,8,2,4"], "did you mean q_shape?"),
        (["q_shape"], "cannot be read"),
    ):
        assert command.main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line


def test_kernels_that_cannot_serve_are_told() -> None:
    with pytest.raises(ConfigError, match="kernel torch_efficient needs a CUDA device"):
        accuracy.tolerance(SHAPE, "float32", kernel="torch_efficient", device="cpu")
