"""What a stranger types: functions by name, as an axis, from the current folder."""

import sys

import pytest

from accuracy.core import fields
from accuracy.results import table
from tests.command_line import TINY, CommandLine

pytestmark = pytest.mark.xdist_group("foreign")
MODULE = """
from torch.nn.functional import scaled_dot_product_attention

def right(q, k, v, *, causal, softmax_scale, group):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True).transpose(1, 2)

def wrong(q, k, v, **how):
    return right(q, k, v, **how) * 1.25
"""


def test_functions_of_the_current_folder_are_an_axis_bring_their_world_and_are_told_apart(
    accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
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
