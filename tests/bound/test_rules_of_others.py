"""The rules of public tests, as the experiment tolerances scores them: right results pass, doubled ones do not."""

from typing import Any

import pytest
import torch

from accuracy.core import plugins
from accuracy.core.paths import EXPERIMENTS

rules: Any = plugins.load(str(EXPERIMENTS / "tolerances" / "rules.py"))


def given(dtype: str, tensor: str, change: float) -> Any:
    """out like attention's; plain attention errs by two roundings, the tested one not at all before the change."""
    exact = torch.randn(1, 64, 2, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rounded = exact.to(getattr(torch, dtype)).double()
    plain = exact * (1 + 2 * torch.finfo(getattr(torch, dtype)).eps)
    return rules.Given(tensor, dtype, rounded * change, exact, rounded, plain, rounded, 4, True)


@pytest.mark.parametrize("name", rules.RULES)
def test_a_rule_passes_what_is_right_and_refuses_what_is_doubled(name: str) -> None:
    rule = rules.RULES[name]
    for dtype in rule.dtypes:
        for tensor in rule.tensors:
            assert rule.passes(given(dtype, tensor, 1.0))
            doubled = rule.passes(given(dtype, tensor, 2.0))
            assert doubled == (name == "cosine > 0.99"), (dtype, tensor)  # a cosine knows no length


def test_every_rule_names_its_source() -> None:
    assert all(len(rule.source.split()) >= 3 for rule in rules.RULES.values())
