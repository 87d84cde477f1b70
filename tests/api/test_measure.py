import threading
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from accuracy.core.paths import CONFIGS
from tests.processes import python

SMALL = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 16, "device": "cpu"}
pytestmark = pytest.mark.xdist_group("measure")


def bhsd(q, k, v, *, causal, softmax_scale, group):
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)


def bshd(q, k, v, **how):
    return bhsd(*(x.transpose(1, 2) for x in (q, k, v)), **how).transpose(1, 2)


def in_float32(q, k, v, *, causal, softmax_scale, group):
    """By hand, in float32 inside, with lse."""
    k, v = (x.float().repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k) * softmax_scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).to(q.dtype), scores.logsumexp(-1)


def closure(factor):
    return lambda q, k, v, **how: bshd(q * factor, k, v, **how)


class Module(torch.nn.Module):
    def forward(self, q, k, v, **how):
        return bshd(q, k, v, **how)


class Named(torch.nn.Module):
    """Without softmax_scale and group, which a module's own call would take."""

    def forward(self, query, key, value, is_causal=True):
        return bshd(query, key, value, causal=is_causal, softmax_scale=None, group=None)


def test_a_stranger_s_function_is_measured_on_one_rank_as_it_is() -> None:
    subjects = [bshd, in_float32, closure(1.0), Module(), Named()]
    calls = ((subjects, {}), (partial(bshd), {}), (bhsd, {"layout": "bhsd"}))
    rows = [accuracy.measure(fn, **SMALL, **how) for fn, how in calls]
    assert [set(each["variant"]) for each in rows] == [
        {"bshd", "in_float32", "lambda", "Module", "Named"}, {"bshd"}, {"bhsd"}
    ]  # fmt: skip
    for (name, _), each in pd.concat(rows).groupby(["variant", "case_id"]):
        measured = each[each["status"] == "ok"]
        assert set(measured["tensor"]) >= {"out", "dq", "dk", "dv"}
        assert measured["error_rel"].max() < 2**-7
        assert ("lse" in set(measured["tensor"])) == (name == "in_float32")


def test_lists_are_axes_and_variants_stand_beside_functions() -> None:
    rows = accuracy.measure(
        ["ring", bshd], dtype=[torch.float32, "bfloat16"], seed=range(2), inputs=["gaussian", "peaked"], **SMALL
    )
    cases = rows.drop_duplicates("case_id")
    assert len(cases) == 2 * 2 * 2 * 2
    assert dict(zip(cases["variant"], cases["world"], strict=True)) == {"ring": "simulated", "bshd": "processes"}


def test_a_function_without_grouped_heads_is_told_how_to_have_none_and_no_other_failure_is() -> None:
    def ungrouped(q, k, v, *, causal, softmax_scale, group):
        return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale)

    def other_sizes(q, k, v, **how):
        raise RuntimeError("expected 4, 1 but got 4, 0")

    (row,) = accuracy.measure(ungrouped, layout="bhsd", **SMALL).to_dict("records")
    assert row["status"] == "failed"
    assert "q has 4 heads, k and v have 2; heads_kv=4 measures a function that wants as many" in row["reason"]
    rows = accuracy.measure(ungrouped, layout="bhsd", **SMALL | {"heads_kv": 4})
    assert set(rows.loc[rows["tensor"] != "lse", "status"]) == {"ok"}
    (row,) = accuracy.measure(other_sizes, **SMALL | {"heads_kv": 1}).to_dict("records")
    assert row["reason"].startswith("RuntimeError: expected 4, 1 but got 4, 0 (")
    assert "heads" not in row["reason"]


def test_what_the_process_has_set_in_torch_stays_and_the_function_computes_exactly() -> None:
    seen = []

    def watching(q, k, v, **how):
        seen.append((torch.backends.cudnn.allow_tf32, torch.get_num_threads()))
        return bshd(q, k, v, **how)

    torch.backends.cudnn.allow_tf32 = True
    torch.set_num_threads(2)
    try:
        accuracy.measure(watching, **SMALL)
        assert set(seen) == {(False, 1)}
        assert torch.backends.cudnn.allow_tf32
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_the_caller_s_own_hydra_is_left_as_it_was() -> None:
    with initialize_config_dir(str(CONFIGS), version_base="1.3", job_name="theirs"):
        mine = GlobalHydra.instance().hydra
        accuracy.measure(bshd, **SMALL)
        assert GlobalHydra.instance().hydra is mine
        assert compose("config", overrides=["seed=7"]).seed == 7


def test_a_kept_folder_is_gone_on_with_unless_the_function_changed(tmp_path: Path) -> None:
    calls = []

    def counted(q, k, v, **how):
        calls.append(1)
        return bshd(q, k, v, **how)

    first = accuracy.measure(counted, output_dir=tmp_path / "run", **SMALL)
    number = len(calls)
    calls.clear()
    again = accuracy.measure(counted, seed=[0, 1], output_dir=tmp_path / "run", **SMALL)
    assert number == len(calls) > 0  # of the new seed alone
    assert set(again["seed"]) == {0, 1}
    assert accuracy.load(tmp_path / "run")["case_id"].nunique() == 2
    changed = accuracy.measure({"counted": bshd}, output_dir=tmp_path / "run", **SMALL)
    assert set(changed["code"]).isdisjoint(first["code"])


WRONG: dict[str, tuple[Any, dict[str, Any]]] = {
    "did you mean ring": ("rng", {}), "3 is no variant": (3, {}), "nothing to measure": ([], {}),
    "two are called ring": (["ring", "ring"], {}), "another_name": ({"single_device": bshd}, {}),
    "bfloat16, float16, float32, float64": (bshd, {"dtype": "int8"}), "seqlen": (bshd, {"seqln": 3}),
    "gaussian": (bshd, {"inputs": "nothing"}), "torch_math": (bshd, {"kernel": ["eager", "x"]}),
    "bshd, bhsd": (bshd, {"layout": "sbhd"}), "contiguous": (bshd, {"sharding": "spiral"}),
    "processes, simulated": (bshd, {"world": "moon"}), "world_size=0": (bshd, {"world_size": 0}),
    "does not divide": (bshd, {"heads_kv": 3}),
}  # fmt: skip


def test_a_wrong_argument_is_a_value_error_of_one_line_that_says_what_is_allowed() -> None:
    for message, (subject, how) in WRONG.items():
        with pytest.raises(ValueError, match=message) as caught:
            accuracy.measure(subject, **(SMALL | how))
        assert "\n" not in str(caught.value)


def test_a_function_that_cannot_go_to_other_processes_is_refused_for_several_ranks() -> None:
    lock = threading.Lock()

    def holding(q, k, v, **how):
        assert lock
        return bshd(q, k, v, **how)

    with pytest.raises(accuracy.ConfigError, match="holding cannot go to the processes of its ranks"):
        accuracy.measure(holding, world_size=2, **SMALL)


SCRIPT = """
import logging
import multiprocessing

import accuracy
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

print("main runs")
LOGGERS = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn")]
before = [logger.level for logger in LOGGERS]


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient := gradient.contiguous(), group=ctx.group)
        return gradient.chunk(dist.get_world_size(ctx.group), 1)[dist.get_rank(ctx.group)], None


def gathered(q, k, v, *, causal, softmax_scale, group):
    before = dist.get_rank(group) * q.shape[1]
    k, v = (Gather.apply(x, group) for x in (k, v))
    mask = torch.arange(k.shape[1]) <= before + torch.arange(q.shape[1])[:, None]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2)


small = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 16, "device": "cpu", "world_size": 2}
rows = accuracy.measure([gathered, "ring"], world="processes", **small)
simulated = accuracy.measure("ring", **small)
ours = rows[rows["variant"] == "gathered"]
assert set(ours["rank"]) == {-1, 0, 1}, ours["reason"].tolist()
assert ours["error_rel"].max() < 2**-7
ring = rows[rows["variant"] == "ring"]
assert ring["error_rel"].tolist() == simulated["error_rel"].tolist()
assert [logger.level for logger in LOGGERS] == before
assert multiprocessing.get_start_method(allow_none=True) is None
print("done")
"""


def test_at_two_ranks_a_script_needs_no_guard_and_its_function_runs_in_processes_of_its_own(tmp_path: Path) -> None:
    """They leave torch's loggers and the start method alone."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python("script.py", folder=tmp_path, HOME=str(tmp_path))
    assert done.stdout == "main runs\ndone\n", done.stdout + done.stderr


def test_a_function_that_writes_to_its_inputs_fails_and_spoils_no_other_s_numbers() -> None:
    def through_data(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        q.data.mul_(2)
        return sound(q, k, v, **how)

    def sound(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        return (q + 0 * (k.sum() + v.sum())) * 1.0

    alone = accuracy.measure(sound, seqlen=32, heads=1, heads_kv=1, head_dim=8)
    both = accuracy.measure([through_data, sound], seqlen=32, heads=1, heads_kv=1, head_dim=8)
    failed = both[both["variant"] == "through_data"]
    assert failed["status"].eq("failed").all()
    assert "wrote to its inputs" in failed["reason"].iloc[0]
    after = both[both["variant"] == "sound"]
    assert after["error_rel"].dropna().tolist() == alone["error_rel"].dropna().tolist()
