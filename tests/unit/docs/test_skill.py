"""The skill for agents: its code runs as it stands, on a right kernel and on a wrong one, and it names every label."""

import re

import pytest

import accuracy
from accuracy.core.paths import PACKAGE
from accuracy.verdict.label import LABELS
from tests.strangers import attention, wrong

TEXT = (PACKAGE.parent / "skills" / "attention-accuracy" / "SKILL.md").read_text()
CLOSE, DIAGNOSE = re.findall(r"```python\n(.*?)```", TEXT.replace("\n   ", "\n"), re.DOTALL)


def test_its_first_step_passes_a_right_kernel_and_names_the_tensor_of_a_wrong_one() -> None:
    exec(CLOSE, {"my_attention": attention, "device": "cpu"})
    with pytest.raises(AssertionError, match="dv is wrong"):
        exec(CLOSE, {"my_attention": wrong, "device": "cpu"})


def test_its_second_step_prints_what_a_diagnosis_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found = accuracy.diagnose(accuracy.measure(attention, seqlen=32, device="cpu"))
    monkeypatch.setattr(accuracy, "diagnose", lambda function, device: found)  # which takes a minute
    exec(f"import accuracy\n{DIAGNOSE}", {"my_attention": attention, "device": "cpu"})


def test_it_has_every_label_and_its_head_is_of_a_skill() -> None:
    assert {*re.findall(r"`(\w+)`", TEXT)} >= {*LABELS}
    assert re.match(
        r"---\nname: attention-accuracy\ndescription: .{50,1024}\n---\n", TEXT.replace("\n  ", " "), re.DOTALL
    )
