from collections.abc import Mapping

import pandas as pd
import pytest
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.results import table
from accuracy.variant.base import schedule_of
from experiments.depth import plan
from experiments.depth.attention import Exact, Ranks
from experiments.depth.layers import DIFFERENTIATED, block, loss_of, quantities
from experiments.depth.measure import Measurer
from experiments.depth.plan import Planned, Stack
from experiments.depth.table import SCHEMA, STACK
from experiments.depth.weights import Model, model_of
from tests.measuring import configuration
from tests.unit.api.attention import attend
from tests.variants import schedules, skip_if_bound_to_a_kernel

EXACT = 1e-12
"""`SUMS` for the stack, as much again for the merges of 4 blocks, and twice that for cancellation in
sums that are up to twice smaller than their terms."""


@pytest.mark.stress(8)
@pytest.mark.parametrize("variant", schedules())
def test_in_float64_every_variant_is_exact(variant: str) -> None:
    skip_if_bound_to_a_kernel(variant)
    if not schedule_of(configuration(f"variant={variant}").variants[0].backward).gradients:
        pytest.skip("for inference only")
    rows = measured(f"variant={variant}", "dtype=float64", "world_size=[1,2,3,4]")
    unsupported = rows["status"] == table.UNSUPPORTED  # of one device, or heads that do not divide
    assert set(rows.loc[~unsupported, "status"]) == {table.OK}
    assert rows.loc[~unsupported, "error_rel"].max() < EXACT


def test_a_wrong_backward_shows_in_every_gradient_below_and_in_no_output() -> None:
    stale = [f"+variant.wrong.{way}=tests.unit.fault.planted:bpt_stale_buffer" for way in ("forward", "backward")]
    rows = measured("variant=[]", *stale, "+variant.wrong.sharding=contiguous", "dtype=float64", "world_size=4")
    forward = rows["tensor"].isin(("x", "loss"))
    assert rows.loc[forward, "error_rel"].max() < EXACT
    assert rows.loc[(rows["tensor"] == "dx"), "error_rel"].min() > 1e-3
    assert rows.loc[rows["tensor"] == "d_query", "error_rel"].min() > 1e-3


def test_every_layer_and_tensor_has_a_row_and_every_row_all_numbers() -> None:
    """A deeper stack begins with the layers of a shallower one; single device is no further off than itself."""
    rows = measured("variant=ring", "world_size=2")
    deeper = measured("variant=single_device", "world_size=1", "stack.layers=4")
    assert (deeper["x_single_device"].dropna() == 1).all()
    assert (deeper["diff_rel"] == 0).all()
    outputs = (each[(each["tensor"] == "x") & (each["layer"] <= 3)]["reference_value"] for each in (rows, deeper))
    assert len({tuple(each) for each in outputs}) == 1
    expected = {(layer, name) for layer in (1, 2, 3) for name in ("x", "dx", "d_query", "d_key", "d_value", "d_output")}
    expected |= {(3, "loss"), (3, "gradient_norm")}
    assert set(zip(rows["layer"], rows["tensor"], strict=True)) == expected
    assert len(rows) == len(expected)
    numbers = ["error_rel", "single_device_rel", "x_single_device", "diff_rel", "nonfinite", "seconds"]
    assert rows[[*STACK, "exact_rel", "x_exact", *numbers]].notna().all(axis=None)
    assert set(rows["rank"]) == {table.ALL_RANKS}
    assert set(rows) <= set(SCHEMA.names)


def test_each_layer_of_a_stack_drops_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in the stack, in its reference, on one device and on every rank, and again in the backward."""
    words = ("variant=[ring,llama3]", "world_size=2", "dtype=float64", "problem.dropout=0.3")
    rows = measured(*words)
    assert set(rows["status"]) == {table.OK}
    assert rows["error_rel"].max() < EXACT
    monkeypatch.setattr(Ranks, "at", lambda self, layer: self)  # of all layers alike
    assert measured(*words)["error_rel"].max() > 1e-2


SMALL = (
    "experiment=stack", "problem.seqlen=24", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=8",
    "problem.batch=2", "device=cpu", "unusable=record",
    "stack.layers=3", "stack.width=24", "stack.feed_forward=32", "stack.vocabulary=48",
)  # fmt: skip


def planned(*overrides: str) -> list[Planned]:
    return plan.planned(plan.composed([*SMALL, *overrides]))[1]


def one(*overrides: str) -> tuple[Case, Stack]:
    (each,) = planned(*overrides)
    return each.case, each.stack


def measured(*overrides: str) -> pd.DataFrame:
    configuration, _ = plan.planned(plan.composed([*SMALL, "world_size=1"]))
    measurer = Measurer(configuration, "own")
    return pd.DataFrame([row for each in planned(*overrides) for row in measurer.measure(each)])


SUMS = 2.2e-13
"""No sum has more than 48 terms, so it errs by 48 u = 5e-15 at most of the sum of its absolute terms; 7 products a
layer, there and back, in 3 layers are 42 of them."""


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, causal=True)[0]


def plain_loss(model: Model, layers: list[Mapping[str, Tensor]], residual: bool) -> Tensor:
    x = model.embedding[model.words[:, :-1]]
    for weights in layers:
        x = block(x, weights, plain_attention, 8, residual)
    return loss_of(x, model.norm, model.head, model.words[:, 1:])


@pytest.mark.parametrize("words", [(), ("stack.norm=false",), ("stack.residual=none",), ("stack.feed_forward=0",)])
def test_the_gradients_are_those_of_torch_s_autograd_through_the_whole_stack(words: tuple[str, ...]) -> None:
    case, stack = one("dtype=float64", "world_size=1", "variant=ring", *words)
    model = model_of(case, stack)
    found = {(x.layer, x.tensor): x.value for x in quantities(model, stack, Exact(case), torch.float64, 8)}
    layers = [{name: x.clone().requires_grad_() for name, x in layer.items()} for layer in model.layers]
    loss = plain_loss(model, layers, stack.residual != "none")
    loss.backward()
    assert found[3, "loss"].item() == pytest.approx(loss.item(), rel=SUMS)
    for place, layer in enumerate(layers, 1):
        for name in DIFFERENTIATED:
            expected = layer[name].grad
            assert expected is not None
            assert (found[place, f"d_{name}"] - expected).norm() <= SUMS * expected.norm()
