"""The chunked kernel holds one chunk of scores at a time, and its running sums round as its knob says."""

import pytest
import torch

from accuracy.kernel import chunked
from tests.kernel import measured


def errors(options: chunked.Chunked, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    shape = {"batch": 2, "length": 130, "heads": 4, "dim": 32, "scale": 32**-0.5}
    return measured.errors(options.build("cpu"), dtype, torch.float64, **shape)


@pytest.mark.parametrize(("query_chunk", "key_chunk"), [(1, 1), (7, 33), (33, 7), (130, 32), (4096, 4096)])
def test_chunks_of_any_size_are_right(query_chunk: int, key_chunk: int) -> None:
    """Float64: a score is a sum of 32 products, 32 u; each further chunk rounds the sums once more, 130 times at most,
    a random walk of sqrt(130) = 11 u."""
    found = errors(chunked.Chunked(query_chunk=query_chunk, key_chunk=key_chunk), torch.float64)
    assert max(found.values()) < (32 + 11) * 2**-53


def test_running_sums_in_sixteen_bits_cost_every_sum_and_the_more_the_more_chunks() -> None:
    """130 chunks round a sum 130 times to u = 2^-8, 5 chunks 5 times: a random walk, at least twice as far; lse, whose
    maximum stays in float32, is off by the rounding of ln(total) alone, up to u, and not below u / 64."""
    fine = errors(chunked.Chunked(key_chunk=26))
    few = errors(chunked.Chunked(key_chunk=26, accumulator_dtype="bfloat16"))
    many = errors(chunked.Chunked(key_chunk=1, accumulator_dtype="bfloat16"))
    for name in ("out", "dq"):
        assert fine[name] < 16 * 2**-24 < 2**-8 / 4 < few[name] < many[name] / 2, name
    assert min(few["dk"], few["dv"]) > 2**-8 / 16
    assert 2**-8 / 64 < few["lse"] < 2**-8


def test_no_more_scores_than_a_chunk_exist_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    compute = chunked.scores

    def recorded(*arguments) -> tuple[torch.Tensor, None]:
        seen.append(compute(*arguments)[0])
        return seen[-1], None

    monkeypatch.setattr(chunked, "scores", recorded)
    errors(chunked.Chunked(query_chunk=16, key_chunk=24))
    assert max(scores.shape[-2] * scores.shape[-1] for scores in seen) == 16 * 24


def test_chunks_that_no_row_sees_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    compute = chunked.scores
    monkeypatch.setattr(chunked, "scores", lambda *arguments: calls.append(0) or compute(*arguments))
    errors(chunked.Chunked(query_chunk=65, key_chunk=65))
    assert len(calls) == 2 * 3  # of 2 x 2 chunks the causal mask leaves 3, forward and backward


def test_knobs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="key_chunk=0"):
        chunked.Chunked(key_chunk=0)
    with pytest.raises(ValueError, match="accumulator_dtype='int8'; allowed: input, accumulate"):
        chunked.Chunked(accumulator_dtype="int8")
