"""What a stranger types: functions by name, as an axis, from the current folder; wrong types; a test that fails."""

import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import accuracy
from accuracy.core import fields
from accuracy.core.paths import PACKAGE
from accuracy.results import table
from tests.command_line import TINY, CommandLine
from tests.foreign.functions import eager_out

SMALL = {"seqlen": 32, "heads": 2, "heads_kv": 2, "head_dim": 8, "device": "cpu", "dtype": "float32"}
pytestmark = pytest.mark.xdist_group("foreign")
MODULE = """
from torch.nn.functional import scaled_dot_product_attention

def right(q, k, v, *, causal, softmax_scale, group):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True).transpose(1, 2)

def wrong(q, k, v, **how):
    return right(q, k, v, **how) * 1.25
"""


def test_functions_of_the_current_folder_are_an_axis_and_bring_their_world(
    accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the current folder on Python's path, as an installed command is started."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (accuracy.folder / "stranger.py").write_text(MODULE)
    words = ["variant=[ring,callable]", "variant.fn=[stranger.right,stranger.wrong]", "dtype=float32",
             "world_size=1", "output_dir=run", *TINY]  # fmt: skip
    done = accuracy(*words)
    assert done.status == 0, done.err
    rows = table.read_results(accuracy.folder / "run")
    outs = rows[(rows["tensor"] == "out") & (rows["rank"] == 0)].set_index("variant")
    assert dict(outs["world"]) == {"ring": "simulated", "right": "processes", "wrong": "processes"}
    assert outs.loc["wrong", "error_rel"] == pytest.approx(0.25, rel=1e-5)
    assert all(name in done.out for name in ("right", "wrong"))
    again = fields.words(outs.reset_index().set_index("variant", drop=False).loc["wrong"].to_dict())
    assert {"variant=callable", "variant.callable.fn=stranger.wrong", "variant.sharding=contiguous"} <= set(again)


def test_two_functions_of_one_name_are_told_apart(accuracy: CommandLine) -> None:
    for name in ("one", "other"):
        (accuracy.folder / f"{name}.py").write_text(MODULE)
    words = ["variant=callable", "variant.fn=[one.py:right,other.py:right]", "dry_run=true", "world_size=1", *TINY]
    answer = accuracy(*words)
    assert "one.right" in answer.out
    assert "other.right" in answer.out


WRONG: dict[str, Any] = {
    "no folder": lambda: accuracy.load(3),  # type: ignore[arg-type]
    "int is no table": lambda: accuracy.compare(3, 4),  # type: ignore[arg-type]
    "str is no table": lambda: accuracy.plot.growth("ring"),  # type: ignore[arg-type]
    "3 is no function": lambda: accuracy.assert_accurate(3),  # type: ignore[arg-type]
    "3 names no function": lambda: accuracy.measure({3: eager_out}),  # type: ignore[dict-item]
    "output_dir=3 is no folder": lambda: accuracy.measure(eager_out, output_dir=3, **SMALL),  # type: ignore[arg-type]
    "output_dir='' is no folder": lambda: accuracy.measure(eager_out, output_dir="", **SMALL),
    "did you mean bfloat16": lambda: accuracy.measure(eager_out, **SMALL | {"dtype": "bfloat"}),
    "did you mean zigzag": lambda: accuracy.measure("zig_zag"),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_type_or_a_typo_is_one_line(message: str) -> None:
    with pytest.raises(accuracy.ConfigError, match=message) as caught:
        WRONG[message]()
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy_are_numbers() -> None:
    rows = accuracy.measure(eager_out, world_size=np.int64(1), seed=np.arange(2), **SMALL | {"seqlen": np.int32(32)})
    assert set(rows["seed"]) == {0, 1}


SUITE = """
import pytest
import torch
from accuracy import assert_accurate

def doubled(q, k, v, **how):
    return q + 0 * (k + v)

def test_doubled():
    assert_accurate(doubled, seqlen=32, heads=2, heads_kv=2, head_dim=8, dtype="float32")

def test_results():
    with pytest.raises(AssertionError) as caught:
        assert_accurate(doubled, seqlen=32, heads=2, heads_kv=2, head_dim=8, dtype="float32")
    assert {"out", "dq"} <= set(caught.value.results["tensor"])
"""


def test_a_failing_assertion_prints_its_lines_and_none_of_the_tool_s_source(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    output = result.stdout.str()
    assert len(re.findall("E .*relative error", output)) == 1  # under CI=1 the summary repeats the line
    assert "def assert_accurate" not in output
    assert "complaint" not in output


def test_the_help_may_be_read_in_part() -> None:
    command = f"{sys.executable} -m accuracy --help | head -1"
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
