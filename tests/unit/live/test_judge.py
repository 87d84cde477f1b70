"""Captured calls and training runs: healthy ones are called so, faults are found in their layer and tensor."""

import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from accuracy.bound.policy import OF_FLOAT32
from accuracy.cli import judge as command
from accuracy.core.recording import recorded
from accuracy.live import judge as judging
from accuracy.live.reduce import reduce
from accuracy.live.tensor_core import bears, rounded
from accuracy.live.verdict import label_of
from accuracy.verdict.label import LOGIC, NOT_MEASURED, PRECISION_FLOOR, ROUNDING
from tests.slow.foreign import functions
from tests.strangers import tf32
from tests.unit.api.test_coarser_products import attention_of
from tests.unit.api.test_uncounted import drawn, through_maximum, with_larger_largest
from tests.unit.live import model as small
from tests.unit.live.model import Model, attend, step

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def captured(folder: Path, *functions: Callable[..., Any], dtype: torch.dtype, steps: int = 3) -> Path:
    model = Model(*functions).to(dtype)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    for number in range(steps):
        with accuracy.capture(model, folder, functions=[*dict.fromkeys(functions)]):
            step(model, optimiser, number)
    return folder


@pytest.mark.stress(1)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_a_healthy_run_is_called_healthy(tmp_path: Path, dtype: torch.dtype) -> None:
    found = accuracy.judge(captured(tmp_path, attend, attend, dtype=dtype))
    assert found.healthy, found.sentence
    assert "merely rounds: 2 layers, 6 calls" in found.sentence
    assert set(found.rows["tensor"]) == {"out", "lse", "dq", "dk", "dv"}
    found.raise_if_faulty()


def test_a_gradient_of_float32_has_three_roundings_of_16_bits_inside() -> None:
    """As under autocast to bfloat16: sqrt(3) times 4 times 0.41 unit roundoffs, 2.8, are a format's and no more are."""
    row = {"dtype": "float32", "nonfinite": 0, "times": 4e3, "times_row": 5e3, "times_gain": 0.0, "certain_gain": 0.0,
           "error_gain": 0.0, "struck": 1.0, "beyond": 9, "inside": "", "significand_bits": 24.0,
           "x_floor": 1e5}  # fmt: skip
    for tensor, units, is_explained, label in (
        ("dk", 2.6, True, PRECISION_FLOOR), ("dk", 2.6, False, LOGIC), ("dk", 3.0, True, LOGIC),
        ("out", 2.6, True, LOGIC),
    ):  # fmt: skip
        mine, error = row | {"tensor": tensor, "error_rel": units * 2.0**-8}, np.array([units * 2.0**-8])
        assert label_of(mine, error, lambda dtype, yes=is_explained: yes)[0] == label


def test_an_attention_that_was_given_nan_is_not_accused_and_without_gradients_the_forward_is_judged(
    tmp_path: Path,
) -> None:
    model = Model(attend, attend)
    with torch.no_grad(), accuracy.capture(model, tmp_path / "forward", functions=[attend]):
        model(torch.zeros(1, sum(small.DOCUMENTS), dtype=torch.long))
    found = accuracy.judge(tmp_path / "forward")
    assert (found.healthy, set(found.rows["tensor"])) == (True, {"out", "lse"})
    with torch.no_grad():
        next(model.blocks[1].parameters())[3, 2] = torch.nan
    with accuracy.capture(model, tmp_path / "nan", functions=[f"{small.NAMED}attend"]):
        step(model, torch.optim.SGD(model.parameters(), lr=0.1), 0)
    found = accuracy.judge(tmp_path / "nan")
    assert not found.healthy
    assert found.sentence.startswith("blocks.1.attention in step 0 was given q with")
    assert "leaves rounding" not in found.sentence


FAULTS = {
    "a wrong scale in one layer": (small.attend_at_another_scale, "out", "logic"),
    "a mask that leaks at a border": (small.attend_leaking, "out", "logic"),
    "an lse in bfloat16": (small.attend_with_short_lse, "lse", "precision_floor"),
    "a race": (small.attend_racing, "dk", "logic"),
    "a factor": (small.attend_with_larger_dk, "dk", "logic"),
    "a number added to lse": (small.attend_with_higher_lse, "lse", "logic"),
}


@pytest.mark.stress(6, "name", "dtype")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_in_its_layer_and_its_first_tensor(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    function, tensor, label = FAULTS[name]
    small.late.clear()
    found = accuracy.judge(captured(tmp_path, attend, function, attend, dtype=dtype))
    first = found.first or {}
    assert (first["layer"], first["tensor"], found.label) == ("blocks.1.attention", tensor, label)
    assert "2 other layers merely round" in found.sentence
    if function is small.attend_leaking:
        assert first["worst_token"] == small.DOCUMENTS[0]
        assert "proven wrong" in found.sentence
    if function is small.attend_racing:
        assert "in 1 of 3 captured steps" in found.sentence.lower()
    with pytest.raises(AssertionError, match=r"blocks\.1"):
        found.raise_if_faulty()
    reduced = reduce(tmp_path)  # and a row of it shows the fault alone
    assert (reduced.tensor, reduced.label) == (tensor, label)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(reduced.path))
    assert ended.value.code


def test_the_command_says_the_sentence_and_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = captured(tmp_path, attend, small.attend_leaking, dtype=torch.float32, steps=1)
    assert command.main([str(folder)]) == command.FAULTY
    assert "out of blocks.1.attention in step 0 leaves rounding first (logic): " in capsys.readouterr().out
    assert "What left rounding, in the order in which it was computed" in (folder / "report.html").read_text()
    assert len((folder / "judge.csv").read_text().splitlines()) == 1 + 2 * 5 * 2
    assert command.main([str(folder), "--layers", "*.0"]) == 0


def packed(*borders: int) -> None:
    q, k, v = (torch.randn(1, 48, heads, 16) for heads in (4, 2, 2))
    attend(q, k, v, causal=True, scale=0.25, cu_seqlens=torch.tensor(borders))


def dot_product(length: int = 24, **how: Any) -> None:
    x = torch.randn(1, 2, length, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    scaled_dot_product_attention(x, x, x, **how).sum().backward()


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v


def with_bias() -> None:
    q, k, v = (torch.randn(2, 4, 24, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    biased(q, k, v, bias=q[0, 0] @ k[0, 0].mT)


HIDDEN = torch.zeros(24, 24).index_fill(0, torch.tensor([3]), torch.finfo(torch.float32).min)[None, None]
CALLS: dict[str, tuple[Callable[[], Any], dict[str, Any], str, str]] = {  # a call, how it is captured, what is said
    "documents that hold nothing are left out": (partial(packed, 0, 20, 20, 48), {"functions": [attend]}, ROUNDING, ""),
    "documents of fewer tokens": (partial(packed, 0, 20, 40), {"functions": [attend]}, NOT_MEASURED, ""),
    "a mask of keys alone is no window": (
        partial(dot_product, attn_mask=(torch.arange(24) < 20)[None, None, None]), {}, ROUNDING, ""),
    "a mask of keys alone and more rows than the reference takes at once": (
        partial(dot_product, 1100, attn_mask=torch.arange(1100)[None, None, None] % 3 > 0), {}, ROUNDING, ""),
    "a number hides every key of a query": (
        partial(dot_product, attn_mask=HIDDEN), {}, NOT_MEASURED, "outweighs the scores"),
    "dropout": (partial(dot_product, dropout_p=0.5), {}, NOT_MEASURED, "dropout 0.5 was on"),
    "a bias by any usual name": (with_bias, {"functions": [biased], "layout": "bhsd"}, ROUNDING, ""),
    "a bias of another layout": (with_bias, {"functions": [biased], "layout": "bshd"}, NOT_MEASURED, ""),
    "a compiled model": (dot_product, {"model": nn.Module()}, ROUNDING, "ran it eager"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_judged_unless_it_cannot_be_which_is_said(name: str, tmp_path: Path) -> None:
    call, how, label, words = CALLS[name]
    if model := how.get("model"):
        model.compile(backend="eager")
    with accuracy.capture(model, tmp_path, **{key: how[key] for key in how if key != "model"}):
        call()
    found = accuracy.judge(tmp_path)
    assert (found.label, words in found.sentence) == (label, True), found.sentence


WRONG = {"eager_sees_one_later": "out", "eager_lse_to_base_2": "lse", "eager_lse_in_bfloat16": "lse"}
NAMES = ("eager", "eager_out", "softmax_in_float32", "sdpa", "forward_only", *WRONG)


@pytest.mark.stress(8, "name", "inputs", "dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", ["gaussian", "peaked", "far from zero", "small"])
@pytest.mark.parametrize("name", NAMES)
def test_of_functions_of_strangers_healthy_ones_are_not_accused_and_faulty_ones_are_found(
    tmp_path: Path, name: str, inputs: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(len(inputs))
    q, k, v, dout = (torch.randn(1, 40, heads, 16, generator=generator) for heads in (4, 2, 2, 4))
    if inputs == "small":  # float16 has no normal numbers there
        v, dout = v * 1e-3, dout * 1e-6
    elif name not in WRONG:
        q, k, v = {"gaussian": (q, k, v), "peaked": (8 * q, k, v), "far from zero": (q, k + 5, v + 3)}[inputs]
    layout = functions.HEALTHY[name].layout if name in functions.HEALTHY else "bshd"
    tensors = (x.to(dtype).transpose(1, 2) if layout == "bhsd" else x.to(dtype) for x in (q, k, v, dout))
    q, k, v, dout = (x.detach().requires_grad_() for x in tensors)
    with accuracy.capture(None, tmp_path, functions=[getattr(functions, name)], layout=layout):
        out = getattr(functions, name)(q, k, v, causal=True, softmax_scale=0.25, group=None)
        out = out[0] if isinstance(out, tuple) else out
        if out.requires_grad:
            out.backward(dout)
    found = accuracy.judge(tmp_path)
    first = found.first
    assert (found.healthy, first and first["tensor"]) == (name not in WRONG, WRONG.get(name)), found.sentence
    assert ("in base 2" in found.sentence) == (name == "eager_lse_to_base_2")


UNCOUNTED: dict[str, tuple[list[Any], list[Tensor], str, str]] = {
    # a healthy function and one with a fault; what is wrong at the first look, and of the fault
    "a maximum with a gradient": ([through_maximum("exp"), through_maximum("exp", with_larger_largest)],
                                  drawn(torch.float32, 0.0, 30.0), "dk", "dk"),
    "a scaled q of 16 bits": ([through_maximum("exp2"), through_maximum("exp2", factor=1 + 2.0**-11)],
                              drawn(torch.float16, 3.0, 0.0), "lse", "lse"),
    "q and k in TF32": (
        [small.attend_in_tf32, small.attend_in_tf32_with_higher_lse], drawn(torch.float32, 12.0, 0.0), "lse", "lse"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCOUNTED)
def test_what_running_bounds_do_not_count_is_no_fault_and_hides_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions, tensors, alarm, fault = UNCOUNTED[name]
    how = {"scale": 0.2, "cu_seqlens": torch.tensor([0, 96])} if "TF32" in name else {"softmax_scale": 0.2}
    for wrong, function in enumerate(functions):
        monkeypatch.setattr(small, "captured_here", function, raising=False)
        q, k, v, dout = (x.clone().requires_grad_() for x in tensors)
        with accuracy.capture(None, tmp_path / str(wrong), functions=[function]):
            small.captured_here(q, k, v, causal=True, **how)[0].backward(dout)  # type: ignore[attr-defined]
        found = accuracy.judge(tmp_path / str(wrong))
        first = found.first
        assert (found.healthy, first and first["tensor"]) == (not wrong, fault if wrong else None), found.sentence
        assert found.rows["inside"].str.contains("tf32_cut").any() == ("TF32" in name)
    monkeypatch.setattr(judging, "_second_looks", lambda *_: ())
    assert (accuracy.judge(tmp_path / "0").first or {})["tensor"] == alarm


@pytest.mark.parametrize("place", ["backward", "scores", "values"])
def test_some_products_in_tf32_are_a_fact_and_a_factor_beside_them_is_a_fault(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for factor in (1.0, 1 + 2.0**-7):
        attend, folder = attention_of(tf32, place, factor), tmp_path / str(factor)
        monkeypatch.setattr(small, "captured_here", attend, raising=False)
        q, k, v, dout = (x.clone().requires_grad_() for x in drawn(torch.float32, 0.0, 0.0))
        with accuracy.capture(None, folder, functions=[attend]):
            small.captured_here(q, k, v, causal=True, softmax_scale=0.2).backward(dout)  # type: ignore[attr-defined]
        found = accuracy.judge(folder)
        first = found.first
        assert (found.healthy, first and first["tensor"]) == (factor == 1, None if factor == 1 else "dq"), (
            found.sentence
        )
        assert found.rows["inside"].str.contains("tf32").any()


@pytest.mark.parametrize("to", OF_FLOAT32)
def test_equal_weights_in_coarser_products_bear_their_mark_and_a_larger_factor_does_not(to: str) -> None:
    """1 / 33 loses more where it is cut off than v does in the mean, and all of out is smaller by that."""
    v = torch.randn(1, 33, 64, generator=torch.Generator().manual_seed(0))
    weights = torch.full((1, 33, 33), 1 / 33)
    reference, short = weights.double() @ v.double(), rounded(v, to).double()
    out, inside = (x.double() @ short for x in (rounded(weights, to), weights))
    assert bears(out - reference, inside, reference, reference)
    assert not bears(1.004 * out - reference, inside, reference, reference)


SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}  # fmt: skip
OTHER = {"sliding_window": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "attn_logit_softcapping": 2.0}


@pytest.mark.stress(2)
@pytest.mark.parametrize("kind", ["Llama", "Qwen3", "Gemma2", "GptOss"])
def test_a_small_model_of_hugging_face_is_captured_without_a_word_about_its_attention_and_healthy(
    tmp_path: Path, kind: str
) -> None:
    """Windows, a softcap (Gemma 2) and sinks (GPT-OSS) among them."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; pip install transformers")
    torch.manual_seed(0)
    other = OTHER if kind in ("Gemma2", "GptOss") else {}
    attention = "sdpa" if kind == "Llama" else "eager"
    config = getattr(transformers, f"{kind}Config")(**SIZES, **other, attn_implementation=attention)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).bfloat16()
    x = torch.randint(0, 256, (2, 48))
    seen = torch.ones_like(x)
    seen[0, :9] = 0  # padding to the left
    for mask in (None, seen):
        with accuracy.capture(model, tmp_path, layers="*.1"):
            model(input_ids=x, labels=x, attention_mask=mask).loss.backward()
    found = accuracy.judge(tmp_path)
    assert found.healthy, found.sentence
    assert set(found.rows["tensor"]) == {"out", "dq", "dk", "dv"}
    plain, padded = (one.first for one in recorded(tmp_path))
    assert (plain.layer, plain.heads, plain.causal, plain.mask) == ("model.layers.1.self_attn", (4, 2), True, "")
    assert padded.mask
