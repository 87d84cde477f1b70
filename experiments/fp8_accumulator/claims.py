"""What fp8_accumulator claims about the sum of FP8 products over many keys, checked against its table."""

import pandas as pd

from accuracy.core.path_text import pairs_of
from accuracy.results.claim import Claim

LONGEST = 65536
SUMS_ALONE = "sums of 32 cut"
CUT = 2.0**-16  # of the sum, by term: half of its last place, 2^-13 of it, of each product, and half of that on average
FLUSHED = {512: (0.006, 0.01), 2048: (0.023, 0.04), 8192: (0.1, 0.18)}
CASE = {
    "kernel_options": "backward_chunk=0,key_chunk=128,policy=fp8_hopper",
    "tensor": "out",
    "inputs": "uniform",
}  # what README's Answer is about


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = _rows(results)
    return [
        _gaussian(rows), _one_sign(rows), _averages_out(rows), _flushed(rows), _sums_alone(rows), _prescale(rows),
    ]  # fmt: skip


def answer(results: pd.DataFrame) -> list[Claim]:
    """What README's Answer says."""
    rows = _rows(results)
    lost = _bias(rows, "fp8_hopper").get(LONGEST)
    statement = "At 65,536 keys of one sign out lacks 69.1%."
    if lost is None:
        return [Claim(statement, None, "not measured")]
    return [Claim(statement, bool(round(-lost, 3) == 0.691), f"{-lost:.3%}"), _gaussian(rows), _averages_out(rows)]


def _rows(results: pd.DataFrame) -> pd.DataFrame:
    rows = results[(results["rank"] == -1) & results["error_rel"].notna()]
    said = rows["kernel_options"].map(pairs_of)
    sums = said.map(lambda each: each.get("cut_products") == "False")
    policy = said.str["policy"].mask(sums, SUMS_ALONE)
    rows = rows.assign(policy=policy, flush=said.map(lambda each: int(each.get("flush_interval", 0))))
    return rows.assign(bias=rows["error_bias"] / rows["reference_rms"])


def _of(rows: pd.DataFrame, tensor: str, inputs: str, policy: str) -> "pd.Series[float]":
    """error_rel by length, mean over the seeds."""
    chosen = rows[(rows["tensor"] == tensor) & (rows["inputs"] == inputs) & (rows["policy"] == policy)]
    return chosen[chosen["flush"] == 0].groupby("seqlen")["error_rel"].mean()


def _bias(rows: pd.DataFrame, policy: str) -> "pd.Series[float]":
    """Signed mean of out's error on uniform inputs, over the reference, by length."""
    chosen = rows[(rows["tensor"] == "out") & (rows["inputs"] == "uniform") & (rows["policy"] == policy)]
    return chosen[chosen["flush"] == 0].groupby("seqlen")["bias"].mean()


def _gaussian(rows: pd.DataFrame) -> Claim:
    statement = "On Gaussian inputs 14 bits change the error of out by less than 5% up to 65,536 keys."
    ratio = _of(rows, "out", "gaussian", "fp8_hopper") / _of(rows, "out", "gaussian", "fp8_tensor") - 1
    return _within(statement, ratio.abs(), 0.05, "{:.1%}")


def _one_sign(rows: pd.DataFrame) -> Claim:
    statement = "On values of one sign out lacks 2^-16 of itself for each key, to within a quarter up to 16,384 keys."
    bias = _bias(rows, "fp8_hopper")
    bias = bias[bias.index <= 16384]
    if bias.empty:
        return Claim(statement, None, "not measured")
    ratio = bias / (-CUT * bias.index.to_numpy("float64"))
    said = ", ".join(f"{length:,}: {value:.2%}" for length, value in bias.items())
    return Claim(statement, bool(ratio.between(0.75, 1.25).all()), said)


def _sums_alone(rows: pd.DataFrame) -> Claim:
    statement = "Where the sum of 32 products is cut and not each, out lacks at most a tenth as much at 65,536 keys."
    each, sums = (_bias(rows, policy).get(LONGEST) for policy in ("fp8_hopper", SUMS_ALONE))
    if each is None or sums is None:
        return Claim(statement, None, "not measured")
    return Claim(statement, bool(sums / each <= 0.1), f"{sums:.2%} for {each:.2%}")


def _averages_out(rows: pd.DataFrame) -> Claim:
    statement = (
        "On values of one sign out's error falls from 1,024 to 65,536 keys with a float32 sum and grows with 14 bits."
    )
    exact, short = (_of(rows, "out", "uniform", policy) for policy in ("fp8_tensor", "fp8_hopper"))
    if not {1024, LONGEST} <= set(exact.index) & set(short.index):
        return Claim(statement, None, "not measured")
    holds = exact[LONGEST] < exact[1024] and short[LONGEST] > short[1024]
    return Claim(
        statement, bool(holds), f"{exact[1024]:.2g} to {exact[LONGEST]:.2g}; {short[1024]:.2g} to {short[LONGEST]:.2g}"
    )


def _flushed(rows: pd.DataFrame) -> Claim:
    statement = (
        "At 65,536 keys out lacks 0.6 to 1% with a flush every 512, 2.3 to 4% every 2,048, 10 to 18% every 8,192."
    )
    chosen = rows[
        (rows["tensor"] == "out") & (rows["inputs"] == "uniform") & (rows["seqlen"] == LONGEST) & (rows["flush"] > 0)
    ]
    bias = chosen[chosen["policy"] == "fp8_hopper"].groupby("flush")["bias"].mean().abs()
    if not set(FLUSHED) <= set(bias.index):
        return Claim(statement, None, "not measured")
    holds = all(low <= bias[each] <= high for each, (low, high) in FLUSHED.items())
    said = ", ".join(f"every {flush:,}: {value:.3%}" for flush, value in bias.items())
    return Claim(statement, bool(holds), said)


def _prescale(rows: pd.DataFrame) -> Claim:
    statement = "Without P's prescale out changes by less than 5% on Gaussian inputs, and dv of 65,536 keys is lost."
    ratio = _of(rows, "out", "gaussian", "fp8_no_prescale") / _of(rows, "out", "gaussian", "fp8_tensor") - 1
    lost = _of(rows, "dv", "gaussian", "fp8_no_prescale")
    if LONGEST not in lost:
        return Claim(statement, None, "not measured")
    holds = ratio.abs().max() < 0.05 and lost[LONGEST] > 0.9
    return Claim(
        statement, bool(holds), f"out: {ratio.abs().max():.1%} at most; dv: {lost[LONGEST]:.2g} at 65,536 keys"
    )


def _within(statement: str, values: "pd.Series[float]", bound: float, form: str) -> Claim:
    if values.isna().any() or LONGEST not in values:
        return Claim(statement, None, "not measured")
    said = ", ".join(f"{length:,}: {form.format(value)}" for length, value in values.items())
    return Claim(statement, bool(values.max() < bound), said)
