"""`assert_accurate`, as another project's tests use it: alone and under torchrun, on right and on broken attention."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from accuracy import ConfigError, assert_accurate

pytestmark = pytest.mark.xdist_group("testing")
SMALL = {"seqlen": 128, "heads": 4, "heads_kv": 2, "head_dim": 16}
ROOT = Path(__file__).parents[2]


def attention(q, k, v, *, causal, softmax_scale, group):
    """torch's own, (B, S, H, D)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, "float16", "float32", "float64"])
def test_torch_s_attention_passes_alone_in_every_dtype(dtype) -> None:
    rows = assert_accurate(attention, dtype=dtype, **SMALL)
    assert set(rows.loc[rows["status"] == "ok", "tensor"]) == {"out", "dq", "dk", "dv", "delta"}


def dropped_key(q, k, v, **how):
    mask = torch.ones(k.shape[1], dtype=torch.bool)
    mask[5] = False
    return attention(q, k * mask[:, None, None], v * mask[:, None, None], **how)


def wrong_scale(q, k, v, *, softmax_scale, **how):
    return attention(q, k, v, softmax_scale=softmax_scale * 1.01, **how)


def detached_value(q, k, v, **how):
    return attention(q, k, (v * 2 - v.detach()), **how)


def not_a_number(q, k, v, **how):
    return attention(q, k, v, **how) * torch.where(torch.arange(q.shape[1]) == 7, torch.nan, 1.0)[:, None, None]


def future_seen(q, k, v, *, causal, **how):
    return attention(q, k, v, causal=False, **how)


BROKEN = {
    dropped_key: "is .* times as far from float64 as .* run once .allowed: 1.5., on rank 0 .* times .3.",
    wrong_scale: "times as far",
    detached_value: "dv is .* times as far",
    not_a_number: "non-finite values in out",
    future_seen: "times as far",
}


@pytest.mark.parametrize("fn", BROKEN)
def test_a_broken_one_fails_and_says_where(fn) -> None:
    with pytest.raises(AssertionError, match=BROKEN[fn]) as caught:
        assert_accurate(fn, dtype="float32", **SMALL)
    assert fn.__name__ in str(caught.value)


def test_the_message_names_rank_tensor_token_head_and_dim() -> None:
    def one_element(q, k, v, **how):
        shift = torch.zeros_like(q)
        shift[0, 77, 3, 11] = 0.5
        return attention(q, k, v, **how) + shift

    with pytest.raises(AssertionError) as caught:
        assert_accurate(one_element, dtype="float32", **SMALL)
    assert "largest error 0.5 on rank 0, at batch 0, token 77, head 3, dim 11" in str(caught.value)
    assert "also over the limit" not in str(caught.value)
    with pytest.raises(AssertionError, match="also over the limit: "):
        assert_accurate(dropped_key, dtype="float32", **SMALL)


def test_switches_of_the_process_are_those_of_the_function_and_stay() -> None:
    seen = []

    def watching(q, k, v, **how):
        seen.append(torch.backends.cudnn.allow_tf32)
        return attention(q, k, v, **how)

    torch.backends.cudnn.allow_tf32 = True
    assert_accurate(watching, **SMALL)
    assert seen == [True]
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(
    ("argument", "message"),
    [({"dtype": "int8"}, "int8"), ({"sharding": "spiral"}, "contiguous"), ({"layout": "sbhd"}, "bshd"),
     ({"heads_kv": 3}, "does not divide"), ({"inputs": "nothing"}, "gaussian"), ({"device": "tpu"}, "device")],
)  # fmt: skip
def test_a_wrong_argument_says_what_is_allowed(argument, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        assert_accurate(attention, **(SMALL | argument))


SUITE = """
from accuracy import assert_accurate
from tests.variant import somebody

SMALL = {"seqlen": 192, "heads": 4, "heads_kv": 2, "head_dim": 16}

def test_right():
    rows = assert_accurate(somebody.contiguous, dtype="float64", kernel="eager", **SMALL)
    assert set(rows["rank"]) == {-1, 0, 1}

def test_broken():
    assert_accurate(somebody.rank_one_doubles_dq, dtype="float32", **SMALL)

def test_raising():
    assert_accurate(somebody.rank_one_raises, dtype="float32", **SMALL)
"""


def test_under_torchrun_every_rank_fails_alike_and_the_worst_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "pytest",
               "-q", "-p", "no:cacheprovider", str(tmp_path)]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    output = done.stdout + done.stderr
    assert output.count("2 failed, 1 passed") == 2, output
    assert len(re.findall("dq is .* times as far from float64 .*, on rank 1 .* times", output)) >= 2
    assert output.count("rank 1: ValueError: on purpose") >= 2


def test_the_readme_s_example_runs_as_it_stands(pytester: pytest.Pytester) -> None:
    text = (ROOT / "README.md").read_text()
    block = next(part for part in text.split("```python\n")[1:] if "assert_accurate" in part).partition("```")[0]
    source = inspect.getsource(attention).replace("def attention", "def my_attention")
    package = f"from torch.nn.functional import scaled_dot_product_attention\n\n{source}"
    pytester.makepyfile(my_package=package, test_my_attention=block)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
