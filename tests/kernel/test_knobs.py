from dataclasses import replace

import pytest
import torch

from accuracy.kernel import chunked, eager, torch_math
from accuracy.kernel.base import KernelKnobs
from tests.kernel.problem import Problem, measured

SQUARE = Problem(queries=128, keys=128, heads_kv=2, dim=64, scale=0.125)
ODD = Problem(queries=130, keys=130, heads=4, heads_kv=2, dim=32, scale=32**-0.5, batch=2)


def errors(knobs: KernelKnobs, problem: Problem = SQUARE, stored: torch.dtype | None = None) -> dict[str, float]:
    return measured(knobs.build("cpu"), problem, stored)


def test_where_eager_rounds_is_what_it_loses() -> None:
    """P to bfloat16: u = 2^-8, averaged over up to 128 keys (a factor of 12); lse stays in float32's 16 u. All in
    bfloat16 costs all. Float64 inside, float32 outside: one rounding to nearest, at most u of each element."""
    coarse = errors(eager.Eager(probability_dtype="bfloat16"))
    assert coarse["out"] > 2**-8 / 16
    assert coarse["lse"] < 16 * 2**-24
    assert min(errors(eager.Eager(compute_dtype="bfloat16")).values()) > 2**-8 / 16
    fine = errors(eager.Eager(compute_dtype="float64", probability_dtype="float64"))
    assert max(fine["out"], fine["lse"]) < 2**-24


def test_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = errors(eager.Eager())
    monkeypatch.setitem(eager.SCORES_AT_ONCE, "cpu", 2 * 128 * 10)
    parts = errors(eager.Eager())
    assert parts["out"] == pytest.approx(whole["out"], rel=0.1)  # other shapes of products may round otherwise


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_in_sixteen_bits_cost_out_and_gradients_and_not_the_lse_beside_it(dtype: torch.dtype) -> None:
    """Scores of size 2.4 rounded to 16 bits are off by up to 2.4 u, and so is P; computed in float32 only the result is
    rounded, 0.4 u: more than twice as much."""
    problem = replace(SQUARE, dtype=dtype, scale=0.3)
    fine, coarse = (errors(torch_math.TorchMath(reduced_sums=each), problem) for each in (False, True))
    assert all(coarse[name] > 2 * fine[name] for name in ("out", "dq", "dk", "dv"))
    assert coarse["lse"] == fine["lse"] < 2**-20
    assert not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()


def chunk_errors(knobs: chunked.Chunked, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    return errors(knobs, replace(ODD, dtype=dtype), torch.float64)


def test_chunks_of_any_size_are_right() -> None:
    """Float64: a score is a sum of 32 products, 32 u; each further chunk rounds the sums once more, 50 times at most, a
    random walk of sqrt(50) = 7 u."""
    problem = replace(ODD, queries=50, keys=50, dtype=torch.float64)
    for sizes in ((1, 1), (7, 33), (33, 7), (50, 32), (4096, 4096)):
        assert max(errors(chunked.Chunked(*sizes), problem).values()) < (32 + 7) * 2**-53, sizes


def test_running_sums_in_sixteen_bits_cost_every_sum_and_the_more_the_more_chunks() -> None:
    """130 chunks round a sum 130 times to u = 2^-8, 5 chunks 5 times: a random walk, at least twice as far; lse, whose
    maximum stays in float32, is off by the rounding of ln(total) alone, up to u, and not below u / 64."""
    fine = chunk_errors(chunked.Chunked(key_chunk=26))
    few = chunk_errors(chunked.Chunked(key_chunk=26, accumulator_dtype="bfloat16"))
    many = chunk_errors(chunked.Chunked(key_chunk=1, accumulator_dtype="bfloat16"))
    for name in ("out", "dq"):
        assert fine[name] < 16 * 2**-24 < 2**-8 / 4 < few[name] < many[name] / 2, name
    assert min(few["dk"], few["dv"]) > 2**-8 / 16
    assert 2**-8 / 64 < few["lse"] < 2**-8


def test_no_more_scores_than_a_chunk_exist_at_once_and_none_that_no_row_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2 x 2 chunks the causal mask leaves 3, forward and backward."""
    seen: list[torch.Tensor] = []
    compute = chunked.scores
    monkeypatch.setattr(chunked, "scores", lambda *given: seen.append(compute(*given)[0]) or (seen[-1], None))
    chunk_errors(chunked.Chunked(query_chunk=16, key_chunk=24))
    assert max(scores.shape[-2] * scores.shape[-1] for scores in seen) == 16 * 24
    seen.clear()
    chunk_errors(chunked.Chunked(query_chunk=65, key_chunk=65))
    assert len(seen) == 2 * 3


def test_knobs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="key_chunk=0"):
        chunked.Chunked(key_chunk=0)
    with pytest.raises(ValueError, match="accumulator_dtype='int8'; allowed: input, accumulate"):
        chunked.Chunked(accumulator_dtype="int8")
