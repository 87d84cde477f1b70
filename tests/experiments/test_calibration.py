"""Every claim of `calibration` holds on a table made up to bear it out, and fails once its own rows say otherwise."""

import math
from collections.abc import Callable, Iterator

import pandas as pd
import pytest

from accuracy.results.claim import Claim, judge

KERNELS = {
    "flash_attn": ("flash_attn", "deterministic=True"),
    "flash_attn_4": ("flash_attn_4", "deterministic=True"),
    "torch_flash": ("torch_flash", "deterministic=True"),
    "eager": ("eager", "compute_dtype=accumulate,probability_dtype=input,tf32=False"),
    "eager 16": ("eager", "compute_dtype=input,probability_dtype=input,tf32=False"),
    "eager P16": ("eager", "compute_dtype=accumulate,probability_dtype=bfloat16,tf32=False"),
    "eager P32": ("eager", "compute_dtype=accumulate,probability_dtype=accumulate,tf32=False"),
    "torch_math": ("torch_math", "reduced_sums=False,tf32=False"),
    "torch_math 16": ("torch_math", "reduced_sums=True,tf32=False"),
}
FLASH, UNFUSED = ("flash_attn", "torch_flash", "eager"), ("eager 16", "torch_math 16")
USUAL = {
    "status": "ok", "variant": "single_device", "world_size": 1, "rank": -1, "seqlen": 1024, "head_dim": 64, "mask": "full",  # noqa: E501
    "softmax_scale": 0.125, "inputs_options": "", "error_max": 0.0, "error_mean": 1.0, "error_rms": 1.0,
    "error_rel": 1.0, "error_bias": 0.0, "error_outward": 0.0, "diff_mean": 0.0, "diff_max": 0.0,
}  # fmt: skip
DELTA = 2**-9 * math.sqrt(2 * 64 / math.pi)
OUT_BY_RANK = (5.436e-5, 1.0681e-4, 8.917e-5, 7.772e-5, 7.010e-5, 6.390e-5, 5.937e-5, 5.579e-5)
LSE_BY_RANK = (9.077e-8, 1.8434e-7, 2.0273e-7, 2.0533e-7, 2.1193e-7, 2.9110e-7)


def row(kernel: str, inputs: str, dtype: str, **values: object) -> dict[str, object]:
    name, options = KERNELS.get(kernel, ("chunked", kernel))
    return {
        **USUAL,
        "kernel": name,
        "kernel_options": options,
        "inputs": inputs,
        "dtype": dtype,
        "tensor": "out",
    } | values


def rmse() -> Iterator[dict[str, object]]:
    for rate, times in (("0.001", 1.68), ("0.0", 1.3)):
        for seqlen in (64, 1024):
            size = {"seqlen": seqlen, "inputs_options": f"rate={rate},scale=10.0"}
            for kernel in FLASH:
                yield row(kernel, "outliers", "float16", error_rms=4e-5, error_rel=1.9e-4, **size)
            for kernel in UNFUSED:
                yield row(kernel, "outliers", "float16", error_rms=4e-5 * times, **size)
    for kernel in (*FLASH, *UNFUSED):
        level = 1.9e-4 if kernel in FLASH else 7.6e-4
        unscaled = {"softmax_scale": 1.0, "inputs_options": "rate=0.001,scale=10.0"}
        yield row(kernel, "outliers", "float16", error_rms=level, **unscaled)


def deviation() -> Iterator[dict[str, object]]:
    largest = dict.fromkeys(FLASH, 1.0) | dict.fromkeys(UNFUSED, 1.6) | {"torch_math": 1.2}
    for sums, by_tile in (("input", {16: 16.0, 64: 10.0, 256: 4.0}), ("accumulate", {16: 1.1, 64: 1.1, 256: 1.1})):
        for tile, error in by_tile.items():
            largest[f"accumulator_dtype={sums},key_chunk={tile},query_chunk=1024,tf32=False"] = error
    for kernel, error in largest.items():
        yield row(kernel, "gaussian", "bfloat16", error_max=error)
    yield row("eager 16", "gaussian", "bfloat16", tensor="delta")


def delta() -> Iterator[dict[str, object]]:
    for kernel in (*FLASH, "eager 16"):
        for tensor, bias in (("out", 2**-9), ("delta", DELTA), ("lse", 0.0)):
            yield row(kernel, "tied", "bfloat16", tensor=tensor, error_outward=bias if kernel == "eager 16" else 0.0)


def one_value() -> Iterator[dict[str, object]]:
    for kernel in (*FLASH, "flash_attn_4", "torch_math 16"):
        yield row(kernel, "one_value", "bfloat16", error_max=2**-8, error_mean=1e-6, error_bias=-1e-6)
    yield row("eager P16", "one_value", "float32", error_max=1e-3, error_rms=1e-4, error_bias=1e-6)
    yield row("eager P32", "one_value", "float32", error_max=5e-7, error_rms=1e-7)


def by_rank() -> Iterator[dict[str, object]]:
    for kernel in ("flash_attn", "eager"):
        for tensor, means in (("out", OUT_BY_RANK), ("lse", LSE_BY_RANK)):
            for rank, mean in enumerate(means):
                found = 0.0 if (kernel, rank) == ("eager", 0) else mean
                ring = {"variant": "ring", "world_size": 8, "rank": rank, "tensor": tensor}
                yield row(kernel, "gaussian", "bfloat16", diff_mean=found, diff_max=2**-20, **ring)


@pytest.fixture
def table() -> pd.DataFrame:
    made = pd.DataFrame([*rmse(), *deviation(), *delta(), *one_value(), *by_rank()])
    made["label"] = made["kernel"] + " " + made["kernel_options"]
    return made


def query(condition: str, column: str, change: Callable[[pd.Series], pd.Series]) -> Callable[[pd.DataFrame], None]:
    """Change a column of the rows that meet a condition."""

    def plant(table: pd.DataFrame) -> None:
        rows = table.eval(condition)
        assert rows.any(), condition
        table.loc[rows, column] = change(table.loc[rows, column])

    return plant


def times(factor: float) -> Callable[[pd.Series], pd.Series]:
    return lambda values: values * factor


def to(value: float) -> Callable[[pd.Series], pd.Series]:
    return lambda values: values * 0 + value


SIXTEEN = "label.str.contains('compute_dtype=input|reduced_sums=True')"
SCALED, UNSCALED = "inputs == 'outliers' and softmax_scale < 1", "inputs == 'outliers' and softmax_scale == 1"
OUTLIERS = f"{SCALED} and inputs_options.str.startswith('rate=0.001')"
LOW, FULL = "label.str.contains('r_dtype=input,key')", "label.str.contains('r_dtype=accumulate,key')"
ONE = "inputs == 'one_value' and dtype == 'bfloat16'"
RING = "variant == 'ring'"

PLANTS = {
    "times flash_attn's RMSE": query(
        f"{OUTLIERS} and kernel == 'flash_attn' and seqlen == 64", "error_rms", times(1.4)
    ),
    "times torch_flash's RMSE": query(f"{OUTLIERS} and kernel == 'torch_flash'", "error_rms", times(0.7)),
    "times eager's RMSE": query(f"{OUTLIERS} and kernel == 'torch_math'", "error_rms", times(1.4)),
    "At the usual scale flash's RMSE": query(f"{OUTLIERS} and not {SIXTEEN} and seqlen == 64", "error_rms", times(3)),
    "Without a scale": query(f"{UNSCALED} and kernel == 'torch_flash'", "error_rms", times(1.4)),
    "But then the unfused RMSE": query(f"{UNSCALED} and {SIXTEEN}", "error_rms", times(0.5)),
    "It is the outliers": query(f"{OUTLIERS} and {SIXTEEN} and seqlen == 1024", "error_rms", times(0.7)),
    "Relative to out": query(f"{OUTLIERS} and kernel == 'torch_flash' and seqlen == 64", "error_rel", times(1.5)),
    "Golden: flash_attn": query("inputs == 'gaussian' and kernel == 'flash_attn'", "error_max", times(10)),
    "Golden: torch_flash": query("inputs == 'gaussian' and kernel == 'torch_flash'", "error_max", times(1.7)),
    "Golden: eager": query("inputs == 'gaussian' and kernel == 'torch_math'", "error_max", times(0.5)),
    "tiles of 16 keys it is": query(f"{LOW} and label.str.contains('key_chunk=16,')", "error_max", times(0.4)),
    "With such sums larger tiles": query(f"{LOW} and label.str.contains('key_chunk=256')", "error_max", times(3)),
    "The same tiles with float32 sums": query(f"{FULL} and label.str.contains('key_chunk=64')", "error_max", times(2)),
    "Of an unfused form in float32": query("inputs == 'gaussian' and kernel == 'torch_math'", "error_max", times(3)),
    "Qiu and Yao": query(f"inputs == 'tied' and {SIXTEEN} and tensor == 'delta'", "error_outward", times(0.5)),
    "flash_attn, which divides": query("inputs == 'tied' and kernel == 'flash_attn'", "error_outward", to(2**-9)),
    "torch_flash, which divides": query("inputs == 'tied' and kernel == 'torch_flash'", "error_outward", to(-(2**-9))),
    "eager, which divides": query(f"inputs == 'tied' and not {SIXTEEN}", "error_outward", to(2**-9)),
    "On Gaussian inputs": query(f"inputs == 'gaussian' and {SIXTEEN}", "error_outward", to(0.2)),
    "A flash kernel has that bias": query(
        "inputs == 'tied' and kernel == 'torch_flash' and tensor == 'out'", "error_bias", to(-(2**-9))
    ),
    **{
        f"wherever {kernel} does": query(f"{ONE} and kernel == '{kernel}'", "error_bias", to(1e-6))
        for kernel in (*FLASH, "flash_attn_4")
    },
    "Where P is normalised": query(f"{ONE} and kernel == 'torch_math'", "error_bias", to(-5e-7)),
    "Before out is stored": query("label.str.contains('probability_dtype=bfloat16')", "error_bias", to(-2e-5)),
    "With P unrounded": query("label.str.contains('probability_dtype=accumulate')", "error_max", to(2e-6)),
    "No eager out is": query("label.str.contains('probability_dtype=bfloat16')", "error_max", to(2**-8)),
    **{
        f"PR #34, {kernel}: {statement}": query(f"{RING} and kernel == '{kernel}' and {rows}", column, times(factor))
        for kernel in ("flash_attn", "eager")
        for statement, rows, column, factor in (
            ("the mean diff of out", "tensor == 'out' and rank == 5", "diff_mean", 1.2),
            ("the largest diff of lse", "tensor == 'lse' and rank == 2", "diff_max", 3),
            ("the mean diff of lse", "tensor == 'lse' and rank == 4", "diff_mean", 1.3),
        )
    },
    "PR #34: rank 0": query(f"{RING} and kernel == 'flash_attn' and rank == 0", "diff_mean", to(0.0)),
    "With eager, which cuts no keys": query(f"{RING} and kernel == 'eager' and rank == 0", "diff_mean", to(1e-5)),
}


def judged(table: pd.DataFrame) -> list[Claim]:
    return judge("calibration", table)


def named(part: str, claims: list[Claim]) -> Claim:
    (found,) = [claim for claim in claims if part in claim.statement]
    return found


def test_every_claim_holds_on_a_table_that_bears_it_out(table: pd.DataFrame) -> None:
    assert {claim.statement: claim.evidence for claim in judged(table) if claim.holds is not True} == {}


@pytest.mark.parametrize("part", PLANTS)
def test_a_claim_fails_where_its_rows_say_otherwise(table: pd.DataFrame, part: str) -> None:
    PLANTS[part](table)
    claim = named(part, judged(table))
    assert claim.holds is False, claim.evidence


def test_every_claim_has_a_plant(table: pd.DataFrame) -> None:
    claims = judged(table)
    assert {named(part, claims).statement for part in PLANTS} == {claim.statement for claim in claims}


@pytest.mark.parametrize("kernel", ["flash_attn", "flash_attn_4", "torch_flash"])
def test_a_claim_about_a_kernel_that_is_not_in_the_table_is_not_measured(table: pd.DataFrame, kernel: str) -> None:
    table.loc[table["kernel"] == kernel, "status"] = "unsupported"
    about = {claim.statement: claim for claim in judged(table) if kernel in claim.statement.replace(",", " ").split()}
    about = {statement: claim for statement, claim in about.items() if "A flash kernel" not in statement}
    assert about
    assert {claim.holds for claim in about.values()} == {None}
    assert {claim.evidence for claim in about.values()} == {"not measured"}


@pytest.mark.parametrize("dropped", ["outliers", "gaussian", "tied", "one_value", "every"])
def test_rows_that_are_missing_leave_the_claims_about_others_as_they_are(table: pd.DataFrame, dropped: str) -> None:
    kept = table[(table["inputs"] != dropped) & (dropped != "every")]
    found = {claim.holds for claim in judged(kept)}
    assert found == ({None} if kept.empty else {None, True})


def test_an_out_that_is_1_everywhere_has_no_side(table: pd.DataFrame) -> None:
    """The reference is 1 to float64's rounding: an error of that is none."""
    stored = table.eval(f"{ONE} and kernel == 'eager'")
    table.loc[stored, ["error_max", "error_mean", "error_bias"]] = [3e-15, 7e-16, 1e-18]
    claim = named("wherever eager does", judged(table))
    assert (claim.holds, claim.evidence) == (None, "it stores 1 everywhere")
