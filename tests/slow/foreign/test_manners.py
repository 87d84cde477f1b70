"""What a stranger's function does to the process it runs in, and what he is told where it raises."""

import importlib
import operator
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import accuracy
from accuracy.verdict.label import BUGS
from tests.golden import ring as gathered
from tests.measuring import only_grids
from tests.slow.foreign.functions import asks_its_group, eager_out

SMALL = {"seqlen": 32, "heads": 2, "heads_kv": 2, "head_dim": 8, "device": "cpu", "dtype": "float32"}
pytestmark = pytest.mark.xdist_group("foreign")


def measured(fn: Any, **how: Any) -> Any:
    rows = accuracy.measure(fn, **SMALL, **how)
    assert set(rows["status"]) <= {"ok", "unsupported"}, rows["reason"].tolist()
    return rows


def test_a_function_finds_a_group_of_one_which_is_gone_afterwards_and_the_caller_s_stays() -> None:
    hook, before = sys.excepthook, dict(os.environ)
    measured(asks_its_group)
    assert not dist.is_initialized()
    assert (sys.excepthook is hook, dict(os.environ)) == (True, before)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mine = dist.group.WORLD
    try:
        measured(asks_its_group)
        assert dist.group.WORLD is mine
    finally:
        dist.destroy_process_group()


def test_a_run_makes_one_group_and_another_where_a_function_has_ended_it() -> None:
    seen: list[Any] = []

    def keeps(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        seen.append(dist.group.WORLD)
        return asks_its_group(q, k, v, **how)

    def ends(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        out = keeps(q, k, v, **how)
        dist.destroy_process_group()
        return out

    for fn, groups in ((keeps, 1), (ends, 3)):
        seen.clear()
        measured(fn, seed=[0, 1, 2])
        assert (len({id(each) for each in seen}), len(seen), dist.is_initialized()) == (groups, 3, False)


def test_ranks_start_where_modules_were_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pytest in pytest (`pytester.runpytest_inprocess`) drops those that it was the first to import."""
    importlib.import_module("accuracy.execute.ranks.agent")
    for name in [*sys.modules]:
        if name.startswith(("torch.distributed.elastic", "accuracy.execute.ranks.agent")):
            monkeypatch.delitem(sys.modules, name)
    assert set(measured(gathered.ring, world_size=2)["rank"]) == {-1, 0, 1}


GETTERS = (
    torch.get_default_dtype, torch.are_deterministic_algorithms_enabled, torch.is_grad_enabled, torch.get_num_threads,
    torch.get_default_device, torch.get_float32_matmul_precision, torch.backends.cuda.flash_sdp_enabled, os.getcwd,
)  # fmt: skip


def state() -> list[Any]:
    return [get() for get in GETTERS]


def random_states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


def test_what_a_function_sets_reaches_neither_the_caller_nor_the_next_case(tmp_path: Path) -> None:
    seen: list[Any] = []

    def rude(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        seen.append(state())
        out = eager_out(q, k, v, **how)
        torch.manual_seed(1), np.random.seed(1), random.seed(1)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.set_grad_enabled(False)
        torch.set_num_threads(2)
        torch.set_default_device("meta")
        torch.set_float32_matmul_precision("medium")
        torch.backends.cuda.enable_flash_sdp(False)
        os.chdir(tmp_path)
        return out

    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    before = state(), random_states()
    measured(rude, seed=[0, 1])
    assert (state(), random_states()) == before
    assert seen[0] == seen[1]


def test_a_function_of_torch_that_was_replaced_is_named_and_put_back() -> None:
    """In this process, which is the user's own: no other one takes its place."""
    before = torch.nn.functional.softmax

    def replacing(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        torch.nn.functional.softmax = torch.log_softmax
        return eager_out(q, k, v, **how)

    with pytest.warns(UserWarning, match=r"replacing changed torch.nn.functional.softmax; it was put back"):
        rows = measured([replacing, eager_out])
    assert torch.nn.functional.softmax is before
    own = rows[rows["variant"] == "eager_out"]
    assert own["error_rel"].dropna().tolist() == measured(eager_out)["error_rel"].dropna().tolist()


def test_the_caller_s_fp32_precision_neither_raises_nor_changes_nor_counts() -> None:
    usual = measured(eager_out)["error_rel"].dropna().tolist()
    for switch in ("fp32_precision", "cuda.matmul.fp32_precision", "mkldnn.matmul.fp32_precision"):
        path, _, name = f"backends.{switch}".rpartition(".")
        holder = operator.attrgetter(path)(torch)
        if not hasattr(holder, name):
            pytest.skip("this torch has no fp32_precision")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(holder, name, "tf32")
            assert measured(eager_out)["error_rel"].dropna().tolist() == usual, switch
            assert getattr(holder, name) == "tf32", switch


def raising(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    raise ValueError("not today")


def test_an_exception_has_its_place_and_its_traceback_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    accuracy.measure(raising, seed=[0, 1], **SMALL)
    (logged,) = [each.getMessage() for each in caplog.records if each.name == "accuracy"]
    (row,) = accuracy.measure(raising, output_dir=tmp_path / "run", **SMALL).to_dict("records")
    place = f"test_manners.py:{raising.__code__.co_firstlineno + 1}, in raising)"
    assert row["reason"].startswith("ValueError: not today (")
    assert row["reason"].endswith(place)
    written = tmp_path / "run" / "tracebacks" / f"{row['case_id']}.txt"
    for text in (logged, written.read_text()):
        assert 'raise ValueError("not today")' in text


def test_a_diagnosis_uses_up_none_of_the_caller_s_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond torch's limit, here of 2, a function runs eager, where this one is right."""
    monkeypatch.setattr("accuracy.config.resolve.with_given", only_grids())
    monkeypatch.setattr("torch._dynamo.config.recompile_limit", 2)

    def wrong_if_compiled(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        return eager_out(q, k, v, **how) * (1.5 if torch.compiler.is_compiling() else 1.0)

    compiled = torch.compile(wrong_if_compiled, backend="eager", dynamic=False)
    small = {name: value for name, value in SMALL.items() if name != "dtype"}
    found = accuracy.diagnose(compiled, **small, world_size=1).verdicts
    wrong = found[(found["tensor"] == "out") & found["label"].isin(BUGS)]
    assert {*wrong["dtype"]} == {"bfloat16", "float16", "float32", "float64"}
    for x in (torch.randn(1, length, 2, 8) for length in (3, 4)):
        how = {"causal": True, "softmax_scale": 1.0, "group": None}
        torch.testing.assert_close(compiled(x, x, x, **how), 1.5 * eager_out(x, x, x, **how))
    apart = accuracy.drift(compiled, wrong_if_compiled, **small, progress=False)
    assert {*apart.loc[apart["tensor"] == "out", "nearer"]} == {"b"}
