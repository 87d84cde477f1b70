from typing import Any

import pytest
import torch

from accuracy.kernel import eager, flash_attn
from experiments.probe.ask import QUESTIONS, asked
from experiments.probe.base import Subject
from tests.unit.experiments.probe import faulty

SUMS = {"output_sum": "float32 (24 bits)", "gradient_sum": "float32 (24 bits)"}
DOUBLE = dict.fromkeys(("score_sum", *SUMS), "float64 (53 bits)")
HEALTHY = {
    "bfloat16": {
        "lse_base": "e", "lse_layout": "(B, H, S), float32", "mask_alignment": "bottom right", "scale": "honoured",
        "score_sum": "float32 (24 bits)", "denominator_sum": "more than 11 bits", **SUMS,
        "probability": "rounded to bfloat16", "repeats": "all the same in 30 runs", "strides": "no effect",
        "value_width": "narrower and wider ones", "sink": "by lse as by one more key",
        "dropout": "the mask that it is given", "memory": "all written, nothing else touched",
        "empty_rows": "out NaN, lse -inf, dq NaN; dk and dv not finite",
    },
    "float16": {**SUMS, "probability": "rounded to float16"},
    "float64": {**DOUBLE, "lse_layout": "(B, H, S), float64", "probability": "not rounded", "scale": "honoured"},
}  # fmt: skip

BF16 = torch.bfloat16
FAULTS: list[tuple[str, Any, str, str]] = [  # question, kernel, dtype, answer
    ("lse_base", faulty.lse_in_base(2), "bfloat16", "2"),
    ("lse_base", faulty.lse_in_base(3), "float32", "no logarithm: 3.78558 for 64 equal keys"),
    ("lse_layout", faulty.lse_transposed, "bfloat16", "(B, S, H), float32"),
    ("mask_alignment", faulty.top_left, "bfloat16", "top left"),
    ("mask_alignment", faulty.no_mask, "bfloat16", "no mask at all"),
    ("empty_rows", faulty.top_left, "bfloat16", "there are none: the first queries see keys"),
    ("empty_rows", faulty.empty_rows(0.0, torch.inf), "float32", "out 0, lse inf, dq 0"),
    ("scale", faulty.scale_ignored, "bfloat16", "ignored in lse"),
    ("scale", faulty.scale_ignored_in_backward, "bfloat16", "ignored in dq, dk"),
    ("scale", faulty.scale_in_float32, "float64", "rounded to fewer bits than float64"),
    ("score_sum", faulty.short_scores, "float16", "bfloat16 (8 bits)"),
    ("denominator_sum", faulty.ShortSums(BF16, 512, "denominator"), "bfloat16", "bfloat16 (8 bits)"),
    ("output_sum", faulty.ShortSums(BF16, 1, "output"), "bfloat16", "bfloat16 (8 bits)"),
    ("output_sum", faulty.ShortSums(BF16, 512, "output"), "float32", "float32 (24 bits) near, bfloat16 (8 bits) far"),
    ("gradient_sum", faulty.ShortSums(BF16, 512, "gradients"), "float32",
     "dq: float32 (24 bits); dk dv: float32 (24 bits) near and over heads, bfloat16 (8 bits) far"),
    ("probability", eager.Eager(probability_dtype="accumulate"), "bfloat16", "kept to "),
    ("probability", eager.Eager(probability_dtype="float16"), "float32", "rounded to TF32 or float16"),
    *[("repeats", faulty.Unsteady(name), "bfloat16", f"{name} has 30 results in 30") for name in ("lse", "dv")],
    ("strides", faulty.ignores_strides, "bfloat16", "heads before tokens: wrong out lse"),
    ("value_width", faulty.first_columns, "bfloat16", "narrower: taken; wider: wrong out dq dk dv"),
    ("sink", faulty.own_lse, "bfloat16", "wrong dq dk dv"),
    ("dropout", faulty.draws_nothing, "bfloat16", "none: the mask is ignored"),
    ("dropout", faulty.drops_by_the_rate, "bfloat16", "another mask"),
    ("memory", faulty.leaves_rows, "bfloat16", "1280 of 9472 of out unwritten"),
    ("memory", faulty.writes_beyond, "float32", "writes 2816 elements beside its results"),
    ("memory", faulty.writes_to_inputs, "float32", "q written to"),
    ("memory", faulty.reads_beyond, "float32", "9472 of 9472 of out unwritten"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "question"), [(dtype, question) for dtype, answers in HEALTHY.items() for question in answers]
)
def test_a_healthy_kernel_is_told_as_it_is(dtype: str, question: str) -> None:
    assert asked(question, Subject(faulty.HEALTHY, dtype, "cpu")).text == HEALTHY[dtype][question]


@pytest.mark.parametrize(("question", "kernel", "dtype", "answer"), FAULTS)
def test_a_planted_fault_is_noticed(question: str, kernel: Any, dtype: str, answer: str) -> None:
    text = asked(question, Subject(kernel, dtype, "cpu")).text
    assert text.startswith(answer)
    assert text != HEALTHY["bfloat16"][question] or dtype == "float16"


def test_every_question_has_a_healthy_answer_and_a_fault_and_what_a_kernel_raises_is_its_answer() -> None:
    assert set(HEALTHY["bfloat16"]) == {row[0] for row in FAULTS} == set(QUESTIONS)

    def refusing(*tensors: Any, **how: Any) -> Any:
        raise RuntimeError("no\nsuch shape")

    text = asked("lse_base", Subject(faulty.Kernel(refusing), "float32", "cpu")).text
    assert text == "refused: RuntimeError: no such shape"


def test_torch_is_left_as_it_was() -> None:
    def state() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory

    before = state()
    asked("memory", Subject(faulty.HEALTHY, "float32", "cpu"))
    assert state() == before


@pytest.mark.gpu
def test_flash_attn_on_a_gpu_is_what_it_documents() -> None:
    """Natural log, bottom right, scale honoured, P rounded to the inputs' dtype, sums in float32, deterministic."""
    flash = flash_attn.KERNEL()
    if missing := flash.abilities("cuda").missing:
        pytest.skip(missing)
    subject = Subject(flash.build("cuda"), "bfloat16", "cuda")
    names = ("lse_base", "lse_layout", "mask_alignment", "scale", "probability", "repeats", "memory")
    expected = {name: HEALTHY["bfloat16"][name] for name in names}
    assert {name: asked(name, subject).text for name in expected} == expected
