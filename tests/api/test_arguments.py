"""No argument is dropped in silence: every entry keeps it in every case, or refuses it in one line before any work.

`python -m tests.api.test_arguments` prints the table of argument x entry."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import accuracy
from accuracy import ConfigError
from accuracy.api import assert_accurate as assertion
from accuracy.api import measure as measuring
from accuracy.core.case import Case


def attention(q, k, v, *, causal, softmax_scale, group, window_size=(-1, -1), softcap=0.0):
    """Takes flash-attn's words; it is not called here."""


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
    "dropout": (0.25, lambda case: case.problem.dropout),
    "worldsize": (2, lambda case: None),
}
"""By argument: a value that no entry has by default, and where a case has it."""
BESIDE = {"documents": {"seqlen": 96}, "heads_kv": {"heads": 4}, "heads": {"heads_kv": 3}}
ENTRIES: dict[str, Callable[..., Any]] = {
    "measure": lambda **how: accuracy.measure(attention, **how),
    "diagnose": lambda **how: accuracy.diagnose(attention, **how),
    "assert_accurate": lambda **how: accuracy.assert_accurate(attention, **how),
    "accuracy_gate": lambda **how: assertion.results_of(attention, **how),
    "drift": lambda **how: accuracy.drift(attention, "single_device", **how),
    "invariance": lambda **how: accuracy.invariance(attention, batchmates=2, **how),
    "measure ring": lambda **how: accuracy.measure("ring", **how),
    "diagnose ring": lambda **how: accuracy.diagnose("ring", **how),
    "attribute": lambda **how: accuracy.attribute("ring@2", "single_device", **how),
}
NEVER = dict.fromkeys(
    ("measure", "diagnose", "assert_accurate", "accuracy_gate", "drift", "invariance"),
    ("seqlen_q", "head_dim_v", "documents", "sinks", "dropout"),
)
"""By entry: what a function of a user's cannot be asked yet, which is refused and not dropped."""


class Planned(BaseException):
    """The cases of a call, in place of their measurement."""

    def __init__(self, cases: list[Case]) -> None:
        self.cases = cases


@contextmanager
def planned_only() -> Iterator[None]:
    usual = measuring.plan

    def plan(*how: Any) -> Any:
        raise Planned([each.case for each in usual(*how) if each.unsupported is None])

    measuring.plan = plan  # type: ignore[assignment]
    try:
        yield
    finally:
        measuring.plan = usual


def outcome(entry: str, argument: str) -> str:
    """`kept`, `refused`, or `dropped`."""
    value, where = OF_CASES[argument]
    try:
        with planned_only():
            ENTRIES[entry](**{argument: value}, **BESIDE.get(argument, {}))
    except ConfigError as error:
        return "refused" if "\n" not in str(error) else f"refused in several lines: {error}"
    except Planned as found:
        kept = bool(found.cases) and all(where(case) == value for case in found.cases)
        return "kept" if kept else f"dropped in {sum(where(case) != value for case in found.cases)} cases"
    raise AssertionError("nothing was planned")


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_entry_drops_an_argument_in_silence(entry: str, stress: bool) -> None:
    chosen = OF_CASES if stress else random.Random(entry).sample([*OF_CASES], len(OF_CASES) // 2)
    found = {argument: outcome(entry, argument) for argument in [*chosen, "worldsize"]}
    assert {found[name] for name in found} <= {"kept", "refused"}, found
    assert found["worldsize"] == "refused"
    assert all(found[argument] == "refused" for argument in NEVER.get(entry, ()) if argument in found), found


OF_TENSORS = {
    "causal": True, "softmax_scale": 0.3, "window": 3, "documents": (6, 10), "softcap": 0.5, "sinks": (0.5, 0.5),
    "policy": "kernel", "pieces": 4, "casual": True,
}  # fmt: skip


@pytest.mark.parametrize("argument", OF_TENSORS)
def test_bounds_and_assert_close_keep_or_refuse_what_they_are_given(argument: str) -> None:
    q, k, v = torch.randn(3, 1, 16, 2, 8, generator=torch.Generator().manual_seed(1)).unbind()
    given = {argument: OF_TENSORS[argument]}
    if argument == "casual":
        for call in (lambda: accuracy.bounds(q, k, v, **given), lambda: accuracy.assert_close(q, q, k, v, **given)):
            with pytest.raises(ConfigError, match="did you mean causal"):
                call()
        return
    assert not torch.equal(accuracy.bounds(q, k, v, **given)["out"].certain, accuracy.bounds(q, k, v)["out"].certain)


OTHERS: tuple[Callable[[], object], ...] = (
    lambda: accuracy.capture(None, "x", layer="*"),
    lambda: accuracy.judge("x", layer="*"),
    lambda: accuracy.load("x", b="y"),
    lambda: accuracy.compare("a", c="b"),
    lambda: accuracy.plot.growth(None, tensors="out"),
    lambda: accuracy.tolerance((1, 2, 3, 4), "bfloat16", head_kv=2),
)


@pytest.mark.parametrize("call", OTHERS)
def test_the_other_entries_refuse_a_misspelt_word_too(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=r"^argument of \w+ '\w+' is unknown; allowed: "):
        call()


def test_a_planted_drop_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENTRIES, "forgetful", lambda mask, **how: accuracy.measure(attention, **how))
    assert outcome("forgetful", "mask").startswith("dropped")


if __name__ == "__main__":
    print("| argument |", " | ".join(ENTRIES), "|\n|", " --- |" * (len(ENTRIES) + 1))
    for name in OF_CASES:
        print(f"| {name} |", " | ".join(outcome(entry, name) for entry in ENTRIES), "|", flush=True)
