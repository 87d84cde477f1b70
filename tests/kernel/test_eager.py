"""The eager kernel's knobs are rounding places of their own."""

import pytest

from accuracy.kernel import eager
from tests.kernel import measured


def errors(options: eager.Eager) -> dict[str, float]:
    return measured.errors(options.build("cpu"))


def test_rounding_p_costs_out_but_not_lse() -> None:
    """P to bfloat16: u = 2^-8, averaged over up to 128 keys (a factor of 12); lse stays in float32's 16 u."""
    coarse = errors(eager.Eager(probability_dtype="bfloat16"))
    assert coarse["out"] > 2**-8 / 16
    assert coarse["lse"] < 16 * 2**-24


def test_computing_coarsely_costs_everything() -> None:
    coarse = errors(eager.Eager(compute_dtype="bfloat16"))
    assert min(coarse.values()) > 2**-8 / 16


def test_computing_finely_leaves_the_final_rounding() -> None:
    """Float64 inside, float32 outside: one rounding to nearest, at most u of each element."""
    fine = errors(eager.Eager(compute_dtype="float64", probability_dtype="float64"))
    assert max(fine["out"], fine["lse"]) < 2**-24


def test_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = errors(eager.Eager())
    monkeypatch.setitem(eager.CHUNK_ELEMENTS, "cpu", 2 * 128 * 10)
    parts = errors(eager.Eager())
    assert parts["out"] == pytest.approx(whole["out"], rel=0.1)  # other shapes of products may round otherwise
