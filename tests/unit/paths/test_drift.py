"""Two paths on the same inputs: what is equal, how far apart the others are, and that healthy ones are not accused."""

import numpy as np
import pandas as pd
import pytest
import torch

from accuracy.config.grid import cases_of
from accuracy.paths import drift, other_path
from accuracy.paths.table import pairs
from accuracy.runtime import rounding
from accuracy.variant import base
from tests.measuring import TINY, case_of, cases, configuration, measure, pipeline, refused

CPU = ("device=cpu", "dtype=bfloat16")
TOKEN = "quantised/k:e4m3/v:e4m3/granularity:token"


def compared(*words: str) -> pd.DataFrame:
    """Rows over all ranks, of the tensors that both paths have."""
    found = pairs(measure(*CPU, *words))
    return found[(found["rank"] == -1) & (found["label"] != "")].set_index("tensor")


@pytest.mark.stress(1)
@pytest.mark.parametrize(
    ("path", "other"),
    [(f"decode+{TOKEN}", f"single_device+{TOKEN}"), ("decode/wire:float8_e4m3+eager", "ring/wire:float8_e4m3@4+eager")],
)
def test_a_cache_in_8_bits_is_a_path_whose_casts_are_known(path: str, other: str) -> None:
    """Decoding from keys and values in e4m3, a scale a token, or a head: within what these casts make, and farther than
    eager. A scale that is lost is not."""
    found = compared(f"path_a={path}", f"path_b=[{other},single_device+eager]")
    assert set(found["label"]) <= {"equal", "within"}
    plain = found[found["path_b"] == "single_device@1+eager"]
    assert plain.loc["out", "nearer"] == "b"
    assert plain.loc["out", "drift_rel"] > 0.01


def test_a_cache_in_8_bits_that_loses_its_scale_is_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "by_heads", lambda x, form: rounding.by_heads(x, form) * 1.25)
    found = compared("path_a=decode/wire:float8_e4m3+eager", "path_b=single_device+eager")
    assert (found["label"] == "beyond").all()


def test_numbers_are_those_of_the_tensors_themselves() -> None:
    """Each path's tensors taken by hand from a run of its own, norms by torch."""
    case, same = (case_of(*TINY, *CPU, "path_a=ring@4+eager", f"path_b={other}")
                  for other in ("zigzag@2+torch_math", "ring@4+eager"))  # fmt: skip
    by = pipeline()
    rows, targets = pd.DataFrame(by.measure(case).rows), by.targets(case)
    a, b = (other_path.run(each.other, targets.given.tensors)["dk"].double() for each in (same, case))
    reference = targets.reference["dk"]
    dk = rows[rows["tensor"] == "dk"].set_index("rank")
    whole = dk.loc[-1]
    assert whole["drift_rel"] == pytest.approx(float((a - b).norm() / reference.norm()), rel=1e-12)
    assert whole["drift_error_rel"] == pytest.approx(float((b - reference).norm() / reference.norm()), rel=1e-12)
    assert whole["drift_max"] == float((a - b).abs().max())
    assert whole["drift_differ"] == int((a != b).sum())
    shards = (a != b).unflatten(1, (4, -1)).sum((0, 2, 3, 4))
    assert dk.loc[[0, 1, 2, 3], "drift_differ"].tolist() == shards.tolist()


def synthetic(seed: int, shared: float = 0.0, factor: float = 1.0) -> drift.Rows:
    """Two errors of 2^-9 of a Gaussian reference; a share of b's is a's. factor: of b as a whole."""
    generator = torch.Generator().manual_seed(seed)
    reference, e_a, e_b = (torch.randn(2, 64, 3, 16, generator=generator, dtype=torch.float64) for _ in range(3))
    e_b = shared * e_a + (1 - shared**2) ** 0.5 * e_b
    a, b = reference + 2**-9 * e_a, factor * (reference + 2**-9 * e_b)
    return drift.rows_of("out", "bfloat16", a, b, reference, reference + 2**-9 * e_a.flip(0), 1.0)


def test_the_interval_of_independent_errors_covers_95_percent() -> None:
    """200 draws: 95% +- 3 standard errors of sqrt(0.05 0.95 / 200) are 90.4% to 99.6%."""
    found = [drift.numbers(synthetic(seed), slice(None)) for seed in range(200)]
    inside = np.mean([each["drift_low"] <= each["drift_rel"] <= each["drift_high"] for each in found])
    assert 0.904 <= inside <= 0.996
    assert all(each["drift_rel"] <= each["drift_limit"] for each in found)
    assert np.mean([abs(each["drift_nearer"]) > 3 for each in found]) < 0.03  # 0.3% by chance: 6 of 200 is p < 1e-4
    assert np.mean([abs(each["drift_gain"]) > 3 * each["drift_gain_se"] for each in found]) < 0.03


def test_errors_that_are_shared_are_below_the_interval_and_a_factor_is_beyond_the_limit() -> None:
    """A factor of 1 + 2^-11 is a quarter of an error of 2^-9: a norm hides it, and the gain is 2^-11 with a standard
    error of 2^-9 / sqrt(6144)."""
    shared = drift.numbers(synthetic(0, shared=0.5), slice(None))
    assert shared["drift_rel"] < shared["drift_low"]
    scaled = drift.numbers(synthetic(0, factor=1.01), slice(None))
    assert scaled["drift_rel"] > scaled["drift_limit"]
    assert scaled["drift_nearer"] < -3
    assert scaled["drift_gain"] == pytest.approx(-0.01, abs=4 * scaled["drift_gain_se"])
    hidden = drift.numbers(synthetic(0, factor=1 + 2**-11), slice(None))
    assert hidden["drift_rel"] < hidden["drift_limit"]
    assert hidden["drift_gain"] < -8 * hidden["drift_gain_se"]


def test_one_changed_token_is_named_bits_are_compared_and_nan_is_infinitely_far() -> None:
    x = torch.randn(1, 40, 2, 8, dtype=torch.float64)
    y = x.clone()
    y[0, 23, 1, 5] += 1e-3
    rows = drift.rows_of("out", "bfloat16", x, y, x, x, 1.0)
    whole = drift.numbers(rows, slice(None))
    assert (whole["drift_row_token"], whole["drift_differ"]) == (23, 1)
    bins = drift.bin_columns(rows, np.arange(0, 41, 10))
    assert bins["drift_differ"] == [0, 0, 1, 0]
    assert bins["drift_max"][2] == pytest.approx(1e-3)
    y[0, 23, 1, 5] = torch.nan
    rows = drift.rows_of("out", "bfloat16", x, y, x, x, 1.0)
    assert drift.numbers(rows, np.array([23]))["drift_rel"] == np.inf
    assert drift.numbers(rows, np.array([0, 22, 24]))["drift_rel"] == 0
    signed, other = torch.tensor([0.0, 1.0, torch.nan]), torch.tensor([-0.0, 1.0, torch.nan])
    assert drift.differing(signed, other).tolist() == [True, False, False]
    assert drift.differing(signed, other.double()).tolist() == [False, False, False]


PATHS = (
    "ring/partial:accumulate/merge:double@4+eager", "split_kv/splits:3@1+chunked/key_chunk:8", "llama3_ring@2+eager",
    "single_device@1+eager/probability_dtype:accumulate",
)  # fmt: skip
NO_PATHS = {
    "path_b=rink@2": "path_b=rink@2: variant, kernel or function 'rink' is unknown",
    "path_b=ring@two": "@ is followed by a number of ranks", "path_b=ring/partial@2": "'partial' is no KEY:VALUE",
    "path_b=ulysses/merge:double@2": "merge changes nothing in the path ulysses", "path_b=[]": "path_b",
    "path_b=decode/page:8/splits:2": "page=8 with splits=2",
}  # fmt: skip


def test_a_path_s_text_names_the_same_path_again_and_one_that_cannot_be_is_said_in_one_line() -> None:
    own = (*TINY, *CPU, "variant=ring", "world_size=2")
    for path in PATHS:
        (case,) = cases_of(configuration(*own, f"path_b={path}"))
        assert case.against is not None
        assert case.against.text == path
    for word, says in NO_PATHS.items():
        assert says in refused(*own, word)


def test_without_path_b_every_pair_of_path_a_is_compared_once() -> None:
    every = cases(*TINY, *CPU, "path_a=[eager,chunked,torch_math]")
    found = {(case.kernel.name, case.against.kernel.name) for case in every if case.against}
    assert found == {("eager", "chunked"), ("eager", "torch_math"), ("chunked", "torch_math")}


ALL, FORWARD = {"out", "lse", "dq", "dk", "dv"}, {"out", "lse"}
EQUAL = (
    ("ulysses@4", "te_a2a@4", ALL), ("zigzag@1", "single_device", ALL),
    ("zigzag/out_accumulator:input/merge:rescaled@3", "te_p2p@3", FORWARD),
    ("ring@3", "usp/ulysses_ranks:1/ring:contiguous@3", ALL),
)  # fmt: skip


def test_paths_of_the_same_calls_and_roundings_have_equal_bits() -> None:
    """Whatever the products of a machine: they get the same operands in the same shapes."""
    for a, b, tensors in EQUAL:
        labels = compared(f"path_a={a}+eager", f"path_b={b}+eager", "problem.heads_kv=4")["label"]
        assert {name for name, label in labels.items() if label == "equal"} >= tensors, (a, b)


OUT, SHORTER = ("out", "lse", "dk", "dv"), {"seqlen": 1024, "head_dim": 64, "heads": 8}


@pytest.mark.gpu
@pytest.mark.parametrize(("path", "other", "sizes", "equal"), [
    ("single_device", "ulysses@2", {"seqlen": 2048, "head_dim": 128, "heads": 16}, True),
    ("single_device", "ulysses@2", {"seqlen": 2048, "head_dim": 128, "heads": 8}, False),
    *((path, "decode", SHORTER, True) for path in ("llama3_zigzag@2", "llama3_zigzag@64", "te_all_gather@8")),
])  # fmt: skip
def test_flash_attn_s_bits_are_those_of_heads_that_fill_an_h200_and_of_gathered_keys_decoding_s(
    path: str, other: str, sizes: dict[str, int], equal: bool
) -> None:
    """132 multiprocessors: of 16 heads two ranks have 256 blocks of 64 queries each, of 8 they have 128, below 211, and
    keys are cut. A call cuts the keys up to its last query into as many parts of 256 as decoding does."""
    words = [f"problem.{name}={size}" for name, size in (sizes | {"batch": 1, "heads_kv": sizes["heads"]}).items()]
    paths = (f"path_a={path}+flash_attn", f"path_b={other}+flash_attn")
    found = pairs(measure("device=cuda", "dtype=bfloat16", *paths, *words))
    found = found[(found["rank"] == -1) & found["tensor"].isin(OUT) & (found["label"] != "")]
    assert {*(found["label"] == "equal")} == {equal}
