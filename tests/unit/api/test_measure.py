from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from accuracy.core.paths import CONFIGS
from tests.processes import python
from tests.slow.foreign.functions import eager, eager_out, sdpa

SMALL = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 16, "device": "cpu"}
pytestmark = pytest.mark.xdist_group("measure")


class Module(torch.nn.Module):
    def forward(self, q, k, v, **how):
        return eager_out(q, k, v, **how)


class Named(torch.nn.Module):
    """Without softmax_scale and group, which a module's own call would take."""

    def forward(self, query, key, value, is_causal=True):
        scale = query.shape[-1] ** -0.5
        return eager_out(query, key, value, causal=is_causal, softmax_scale=scale, group=None)


def test_a_stranger_s_function_is_measured_on_one_rank_as_it_is() -> None:
    subjects = [eager, eager_out, lambda q, k, v, **how: eager_out(q, k, v, **how), Module(), Named()]
    calls = ((subjects, {}), (partial(eager_out), {}), (sdpa, {"layout": "bhsd"}))
    rows = [accuracy.measure(fn, **SMALL, **how) for fn, how in calls]
    names = [set(each["variant"]) for each in rows]
    assert names == [{"eager", "eager_out", "lambda", "Module", "Named"}, {"eager_out"}, {"sdpa"}]
    for (name, _), each in pd.concat(rows).groupby(["variant", "case_id"]):
        measured = each[each["status"] == "ok"]
        assert set(measured["tensor"]) >= {"out", "dq", "dk", "dv"}
        assert measured["error_rel"].max() < 2**-7
        assert ("lse" in set(measured["tensor"])) == (name == "eager")


def test_lists_and_arrays_are_axes_and_a_bar_tells_how_far_it_is_where_somebody_wants_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    axes = {"dtype": [torch.float32, "bfloat16"], "seed": np.arange(2)}
    for progress in (True, False):
        rows = accuracy.measure(["ring", eager_out], world_size=np.int64(1), progress=progress, **axes, **SMALL)
        assert ("8/8" in capsys.readouterr().err) == progress
    cases = rows.drop_duplicates("case_id")
    assert len(cases) == 2 * 2 * 2
    assert dict(zip(cases["variant"], cases["world"], strict=True)) == {"ring": "simulated", "eager_out": "processes"}


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


def test_what_the_process_has_set_in_torch_and_hydra_stays_and_the_function_computes_exactly() -> None:
    seen = []

    def watching(q, k, v, **how):
        seen.append((torch.backends.cudnn.allow_tf32, torch.get_num_threads()))
        return eager_out(q, k, v, **how)

    torch.backends.cudnn.allow_tf32 = True
    torch.set_num_threads(2)
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3", job_name="theirs"):
            mine = GlobalHydra.instance().hydra
            accuracy.measure(watching, **SMALL)
            assert GlobalHydra.instance().hydra is mine
            assert compose("config", overrides=["seed=7"]).seed == 7
        assert set(seen) == {(False, 1)}
        assert (torch.backends.cudnn.allow_tf32, torch.get_num_threads()) == (True, 2)
    finally:
        torch.set_num_threads(1)


def test_a_kept_folder_is_gone_on_with_unless_the_function_changed(tmp_path: Path) -> None:
    calls = []

    def counted(q, k, v, **how):
        calls.append(1)
        return eager_out(q, k, v, **how)

    first = accuracy.measure(counted, output_dir=tmp_path / "run", **SMALL)
    number = len(calls)
    calls.clear()  # what a function closes over is its code
    again = accuracy.measure(counted, seed=[0, 1], output_dir=tmp_path / "run", **SMALL)
    assert number == len(calls) > 0  # of the new seed alone
    assert set(again["seed"]) == {0, 1}
    assert accuracy.load(tmp_path / "run")["case_id"].nunique() == 2
    changed = accuracy.measure({"counted": eager_out}, output_dir=tmp_path / "run", **SMALL)
    assert set(changed["code"]).isdisjoint(first["code"])


SCRIPT = """
import logging
import multiprocessing

import accuracy
from tests.golden import ring

print("main runs")
LOGGERS = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn")]
before = [logger.level for logger in LOGGERS]


def gathered(q, k, v, *, causal, softmax_scale, group):
    return ring.ring(q, k, v, causal=causal, softmax_scale=softmax_scale, group=group)


small = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 16, "device": "cpu", "world_size": 2}
rows = accuracy.measure([gathered, "ring"], world="processes", **small)
simulated = accuracy.measure("ring", **small)
ours = rows[rows["variant"] == "gathered"]
assert set(ours["rank"]) == {-1, 0, 1}, ours["reason"].tolist()
assert ours["error_rel"].max() < 2**-7
own = rows[rows["variant"] == "ring"]
assert own["error_rel"].tolist() == simulated["error_rel"].tolist()
assert [logger.level for logger in LOGGERS] == before
assert multiprocessing.get_start_method(allow_none=True) is None
print("done")
"""


def test_at_two_ranks_a_script_needs_no_guard_and_its_function_runs_in_processes_of_its_own(tmp_path: Path) -> None:
    """They leave torch's loggers and the start method alone."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python("script.py", folder=tmp_path, HOME=str(tmp_path))
    assert done.stdout == "main runs\ndone\n", done.stdout + done.stderr
