"""Tolerances that public tests use, tried on wrong answers; each case is one of a public project's."""

import pytest

from accuracy.cli import selfcheck
from accuracy.core.errors import ConfigError
from accuracy.selfcheck.vacuity import WRONG, tolerance

CP = ("inputs=sum_loss", "problem.mask=full", "problem.seqlen=1024", "problem.heads=2", "problem.heads_kv=2",
      "problem.head_dim=64")  # fmt: skip
SMALL = ("problem.seqlen=256", "problem.heads=2", "problem.heads_kv=2", "problem.head_dim=16")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, str]]:
    status = selfcheck.main(list(words))
    lines = capsys.readouterr().out.splitlines()
    return status, {line.split(" ", 1)[0]: line for line in lines}


def test_torch_context_parallel_accepts_an_all_zero_dq(capsys: pytest.CaptureFixture[str]) -> None:
    """atol 8e-3 x world size (4): on torch.rand inputs and out.sum().backward(), not causal."""
    status, said = run(capsys, "--tolerance", "atol=3.2e-2", *CP)
    assert status == 1
    assert "passes in dq" in said["zeros"]


def test_fpdt_accepts_attention_without_softmax(capsys: pytest.CaptureFixture[str]) -> None:
    """atol 0.1 (DeepSpeed FPDT), inputs of the size of activations under initial weights."""
    _, said = run(capsys, "--tolerance", "atol=0.1", "inputs.gaussian.std=0.02", *SMALL)
    assert "passes in out, dq, dk, dv" in said["no_softmax"]


def test_a_kernel_that_is_its_own_reference_may_return_zeros(capsys: pytest.CaptureFixture[str]) -> None:
    """TransformerEngine #3528 and #3536; no tolerance helps."""
    _, said = run(capsys, "--tolerance", "atol=0", "--against", "itself", *SMALL)
    assert all("passes in out, dq, dk, dv" in said[wrong] for wrong in WRONG)


def test_three_tokens_do_not_see_a_dropped_key(capsys: pytest.CaptureFixture[str]) -> None:
    """ring-flash-attention's batch tests compare three tokens of a shard, and assert nothing: any atol passes."""
    _, said = run(capsys, "--tolerance", "atol=1e-6", "--tokens", "3", *SMALL)
    assert "passes in out" in said["dropped_key"]
    _, said = run(capsys, "--tolerance", "atol=1e30", "--tokens", "3", *SMALL)
    assert all("passes in out, dq, dk, dv" in said[wrong] for wrong in WRONG)


def test_a_tolerance_with_teeth_refuses_every_wrong_answer(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = run(capsys, "--tolerance", "atol=1e-4,rtol=1e-3", *SMALL)
    assert status == 0
    assert all("is refused" in said[wrong] for wrong in WRONG)


@pytest.mark.parametrize("text", ["atol", "atol=x", "eps=1", "atol=-1", "atol=nan"])
def test_a_tolerance_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        tolerance(text)


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert selfcheck.main(["--tolerance", "atol=1", "problem.seqlenn=3"]) == 2
    assert selfcheck.main(["--fault", "nonesuch"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 2
