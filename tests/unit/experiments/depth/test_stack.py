from pathlib import Path

import pandas as pd
import pytest
import torch

from accuracy.cli import USAGE_ERROR
from accuracy.results import table
from accuracy.variant.base import schedule_of
from experiments.depth import __main__ as command
from experiments.depth import plan
from experiments.depth import table as tables
from experiments.depth.attention import Exact
from experiments.depth.layers import DIFFERENTIATED, block, loss_of, quantities
from experiments.depth.measure import Measurer
from experiments.depth.plan import Planned
from experiments.depth.table import SCHEMA, STACK
from experiments.depth.weights import model_of
from tests.command_line import line_of
from tests.measuring import configuration
from tests.strangers import attend
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
    assert rows.loc[rows["tensor"].isin(("x", "loss")), "error_rel"].max() < EXACT
    assert rows.loc[rows["tensor"].isin(("dx", "d_query")), "error_rel"].min() > 1e-3


def test_every_layer_and_tensor_has_a_row_and_every_row_all_numbers() -> None:
    """A deeper stack begins with the layers of a shallower one; single device is no further off than itself."""
    rows = measured("variant=ring", "world_size=2")
    deeper = measured("variant=single_device", "world_size=1", "stack.layers=4")
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


SMALL = (
    "experiment=stack", "problem.seqlen=24", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=8",
    "problem.batch=2", "device=cpu", "unusable=record",
    "stack.layers=3", "stack.width=24", "stack.feed_forward=32", "stack.vocabulary=48",
)  # fmt: skip


def planned(*overrides: str) -> list[Planned]:
    return plan.planned(plan.composed([*SMALL, *overrides]))[1]


def measured(*overrides: str) -> pd.DataFrame:
    configuration, _ = plan.planned(plan.composed([*SMALL, "world_size=1"]))
    measurer = Measurer(configuration, "own")
    return pd.DataFrame([row for each in planned(*overrides) for row in measurer.measure(each)])


SUMS = 2.2e-13
"""No sum has more than 48 terms, so it errs by 48 u = 5e-15 at most of the sum of its absolute terms; 7 products a
layer, there and back, in 3 layers are 42 of them."""


@pytest.mark.parametrize("words", [(), ("stack.norm=false",), ("stack.residual=none",), ("stack.feed_forward=0",)])
def test_the_gradients_are_those_of_torch_s_autograd_through_the_whole_stack(words: tuple[str, ...]) -> None:
    (each,) = planned("dtype=float64", "world_size=1", "variant=ring", *words)
    case, stack = each.case, each.stack
    model = model_of(case, stack)
    found = {(x.layer, x.tensor): x.value for x in quantities(model, stack, Exact(case), torch.float64, 8)}
    layers = [{name: x.clone().requires_grad_() for name, x in layer.items()} for layer in model.layers]
    x = model.embedding[model.words[:, :-1]]
    for weights in layers:
        x = block(x, weights, lambda *qkv: attend(*qkv, causal=True)[0], 8, stack.residual != "none")
    loss = loss_of(x, model.norm, model.head, model.words[:, 1:])
    loss.backward()
    assert found[3, "loss"].item() == pytest.approx(loss.item(), rel=SUMS)
    for place, layer in enumerate(layers, 1):
        for name in DIFFERENTIATED:
            expected = layer[name].grad
            assert expected is not None
            assert (found[place, f"d_{name}"] - expected).norm() <= SUMS * expected.norm()


WORDS = (*SMALL, "variant=ring", "world_size=[2,4]", "unusable=stop")
MISTAKES = (
    ("+stack.depth=3", "stack key 'depth' is unknown; allowed: "),
    ("stack.weights=trained", "trained in another shape; use stack.width=64, "),
    ("inputs=peaked", "inputs has no say in a stack"),
    ("world=processes", "world=processes has no stacks; use world=simulated"),
    ("variant=split_kv world_size=1", "variant split_kv gives no gradients; use one with a backward"),
    ("problem.head_dim=3", "RoPE turns pairs: problem.head_dim=3 is odd"),
    ("stack.width=16777216 stack.layers=100", "GiB of cpu memory, "),
    ("experiment=demo", "experiment=demo has no stack; run it by accuracy experiment=demo"),
)


def test_a_mistake_is_one_line_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, part in MISTAKES:
        given = [word for word in WORDS if not (words.startswith("experiment=") and word.startswith(("exp", "stack")))]
        assert command.main([*given, *words.split(), f"output_dir={tmp_path / 'run'}"]) == USAGE_ERROR, words
        assert part in line_of(capsys, command.COMMAND), words
        assert not (tmp_path / "run").exists(), words


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*WORDS, f"output_dir={tmp_path}"]
    healthy, begun = Measurer.measure, []

    def stopped(self, each):  # type: ignore[no-untyped-def]
        begun.append(each.id)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return healthy(self, each)

    monkeypatch.setattr(Measurer, "measure", stopped)
    with pytest.raises(KeyboardInterrupt):
        command.main(words)
    assert command.main(words) == 0
    assert begun == [begun[0], begun[1], begun[1]]
    rows = tables.read(tmp_path)
    assert set(rows["case_id"]) == set(begun)
    assert rows["x_single_device"].notna().all()
