"""No argument is dropped in silence: every entry keeps it in every case, or refuses it in one line before any work."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import accuracy
from accuracy import ConfigError
from accuracy.api import assert_accurate as assertion
from accuracy.api import measure as measuring
from accuracy.api.request import Problem
from accuracy.core.case import Case
from accuracy.core.errors import OF_PROBLEM
from accuracy.core.paths import PACKAGE
from tests.processes import python
from tests.strangers import tensors


def test_the_types_of_keywords_name_each_setting_of_the_problem() -> None:
    assert {*Problem.__annotations__} == {*OF_PROBLEM}


@pytest.mark.stress
def test_a_misspelt_keyword_or_word_fails_in_a_type_checker(tmp_path: Path) -> None:
    calls = (
        'measure("ring", world_size=[1, 2], mask="full", dtype="bf16", documents=[[1, 2]])',
        'measure("ring", worldsize=2)', 'diagnose("ring", maks="full")', 'drift("ring", "zigzag", mask="fulll")',
    )  # fmt: skip
    path = tmp_path / "typed.py"
    path.write_text("\n".join(["import accuracy", *(f"accuracy.{call}" for call in calls)]))
    how = ("--config-file", "/dev/null", "--ignore-missing-imports", "--follow-imports", "silent")
    done = python("-m", "mypy", *how, "--cache-dir", str(tmp_path), str(path), folder=PACKAGE.parent)
    assert re.findall(r"typed\.py:(\d+): error", done.stdout) == ["3", "4", "5"], done.stdout


def attention(q, k, v, *, causal, softmax_scale, group, window_size=(-1, -1), softcap=0.0):
    """Takes flash-attn's words, and returns nothing."""


OF_CASES: dict[str, tuple[Any, Callable[[Case], Any]]] = {
    "dtype": ("float16", lambda case: case.dtype),
    "world_size": (2, lambda case: case.world_size),
    "seed": (7, lambda case: case.seed),
    "inputs": ("uniform", lambda case: case.inputs.name),
    "kernel": ("torch_math", lambda case: case.kernel.name),
    "sharding": ("zigzag", lambda case: case.variant.sharding),
    "layout": ("bhsd", lambda case: dict(case.variant.options).get("layout")),
    "device": ("cpu", lambda case: case.device),
    "batch": (3, lambda case: case.problem.batch),
    "seqlen": (96, lambda case: case.problem.seqlen),
    "seqlen_q": (72, lambda case: case.problem.queries),
    "heads": (6, lambda case: case.problem.heads),
    "heads_kv": (1, lambda case: case.problem.heads_kv),
    "head_dim": (24, lambda case: case.problem.head_dim),
    "head_dim_v": (16, lambda case: case.problem.value_dim),
    "mask": ("full", lambda case: case.problem.mask),
    "window": (7, lambda case: 7 if case.problem.seqlen <= 8 else case.problem.window),  # there it hides nothing
    "documents": ("60+36", lambda case: case.problem.documents_text),
    "softmax_scale": (0.3, lambda case: case.problem.softmax_scale),
    "softcap": (3.0, lambda case: case.problem.softcap),
    "sinks": (0.5, lambda case: case.problem.sinks),
    "padding": ("end", lambda case: case.problem.padding),
    "worldsize": (2, lambda case: None),
}
"""By argument: a value that no entry has by default, and where a case has it."""
SMALL = {"seqlen": 80, "heads": 4, "heads_kv": 2, "head_dim": 8}
BESIDE = {"documents": {"seqlen": 96}, "heads_kv": {"heads": 4}, "heads": {"heads_kv": 3}}
OF_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "measure": lambda **how: accuracy.measure(attention, **how),
    "diagnose": lambda **how: accuracy.diagnose(attention, **how),
    "assert_accurate": lambda **how: accuracy.assert_accurate(attention, **how),
    "accuracy_gate": lambda **how: assertion.results_of(attention, **how),
    "drift": lambda **how: accuracy.drift(attention, "single_device", **how),
    "invariance": lambda **how: accuracy.invariance(attention, batchmates=2, **how),
}
ENTRIES = OF_FUNCTIONS | {
    "measure ring": lambda **how: accuracy.measure("ring", **how),
    "diagnose ring": lambda **how: accuracy.diagnose("ring", **how),
    "attribute": lambda **how: accuracy.attribute("ring@2", "single_device", **how),
    "forgetful": lambda mask, **how: accuracy.measure(attention, **how),
}
NEVER = {"documents", "sinks"}
"""What a function of a user's cannot be asked yet, which is refused and not dropped."""


class Planned(BaseException):
    """The cases of a call, in place of their measurement."""


@pytest.fixture(autouse=True)
def _planned_only(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = measuring.plan

    def plan(*how: Any) -> Any:
        raise Planned([each.case for each in usual(*how) if each.unsupported is None])

    monkeypatch.setattr(measuring, "plan", plan)


def outcome(entry: str, argument: str) -> str:
    """`kept`, `refused`, or `dropped`."""
    value, where = OF_CASES[argument]
    with pytest.raises((ConfigError, Planned)) as found:
        ENTRIES[entry](**SMALL | {argument: value} | BESIDE.get(argument, {}))
    if isinstance(found.value, ConfigError):
        return "refused" if "\n" not in str(found.value) else f"refused in several lines: {found.value}"
    (cases,) = found.value.args
    return "kept" if cases and all(where(case) == value for case in cases) else "dropped"


def test_an_entry_that_forgets_a_mask_is_seen() -> None:
    assert outcome("forgetful", "mask") == "dropped"


@pytest.mark.parametrize("entry", [*ENTRIES][:-1])
def test_no_entry_drops_an_argument_in_silence(entry: str, stress: bool, few_grids: None) -> None:
    """That further grids keep what is given is in tests/unit/config/test_grid.py."""
    chosen = [*OF_CASES] if stress else [*random.Random(entry).sample([*OF_CASES], len(OF_CASES) // 12), "worldsize"]
    for argument in chosen:
        refused = argument == "worldsize" or (entry in OF_FUNCTIONS and argument in NEVER)
        assert outcome(entry, argument) in (("refused",) if refused else ("kept", "refused")), argument


def test_bounds_use_what_they_are_given() -> None:
    q, k, v, _ = tensors(queries=16, keys=16, heads_kv=4)
    usual = accuracy.bounds(q, k, v)["out"].certain
    for given in ({"causal": True}, {"softmax_scale": 0.3}, {"window": 3}, {"documents": (6, 10)}, {"softcap": 0.5},
                  {"sinks": (0.5,) * 4}, {"policy": "kernel"}, {"pieces": 4},
                  {"attn_mask": torch.eye(16)}, {"score_mod": lambda s, b, h, q, k: s + h * q}):  # fmt: skip
        assert not torch.equal(accuracy.bounds(q, k, v, **given)["out"].certain, usual), given
