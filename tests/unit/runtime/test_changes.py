"""What a function changed is named, and what torch's own compiler changes is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from accuracy.runtime import changes
from accuracy.runtime.changes import Changes


def other(*given: Any, **how: Any) -> Any:
    return None


REPLACED: dict[str, tuple[Any, str]] = {
    "torch.nn.functional.softmax": (torch.nn.functional, "softmax"),
    "torch.exp": (torch, "exp"),
    "torch.Tensor.softmax": (torch.Tensor, "softmax"),
    "torch.nn.modules.module.Module.forward": (torch.nn.Module, "forward"),
    "accuracy.runtime.changes.told": (changes, "told"),
}
STATES: dict[str, Callable[[bool], Any]] = {
    "torch's default dtype": lambda on: torch.set_default_dtype(torch.float64 if on else torch.float32),
    "numbers below the normal ones": torch.set_flush_denormal,
    "anomaly detection": torch.autograd.set_detect_anomaly,
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_replaced_function_is_named_and_put_back(name: str) -> None:
    (holder, attribute), before = REPLACED[name], Changes()
    kept = getattr(holder, attribute)
    assert before.names() == []
    setattr(holder, attribute, other)
    assert before.names() == [name]
    before.undo()
    assert before.names() == []
    assert getattr(holder, attribute) is kept


@pytest.mark.parametrize("name", STATES)
def test_a_changed_state_is_named(name: str) -> None:
    before = Changes()
    STATES[name](True)
    try:
        assert before.names() == [name]
    finally:
        STATES[name](False)
    assert before.names() == []


def test_new_names_and_what_the_compiler_puts_in_place_are_no_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Changes()
    monkeypatch.setattr(torch, "a_name_of_nobody", other, raising=False)
    monkeypatch.setattr(torch, "manual_seed", torch._disable_dynamo(torch.manual_seed))  # as torch._dynamo's import
    assert torch.manual_seed.__module__ == "torch.random"
    assert before.names() == []
