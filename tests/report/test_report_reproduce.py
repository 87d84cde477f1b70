import shlex

import pandas as pd

from accuracy.report.about import command
from tests.report.synthetic import HOSTILE, Shape, identity

ROW = {
    **identity(Shape(), "bpt", "bfloat16", 8, 0),
    "precision": "merge=logsumexp",
    "kernel_options": "tf32=True",
}


def test_an_unset_knob_and_another_softmax_scale_are_written() -> None:
    text = command({**ROW, "inputs_options": "scale=None", "softmax_scale": 0.5, "world": "processes"})
    assert "inputs.gaussian.scale=null" in text
    assert "problem.softmax_scale=0.5" in text
    assert "world=processes" in text


def test_missing_columns_are_left_out() -> None:
    rows = pd.DataFrame([{**ROW, "seed": None}, {**ROW, "seed": 3.0}])
    first, second = rows.to_dict("records")
    assert "seed" not in command(first)
    assert "seed=3 " in command(second)


def test_a_shell_takes_hostile_text_as_one_word() -> None:
    words = shlex.split(command({**ROW, "variant": HOSTILE, "options": ""}))
    assert words[1] == f"variant={HOSTILE}"
