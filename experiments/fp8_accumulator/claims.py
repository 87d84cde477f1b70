"""What fp8_accumulator claims about the sum of FP8 products over many keys, checked against its table."""

import pandas as pd

from accuracy.core.path_text import pairs_of
from accuracy.results.claim import Claim

LONGEST = 65536
CUT = 2.0**-15 / 32  # of the sum, by term: 2^-13 each 32 keys, a quarter of it on average
CASE = {
    "kernel_options": "key_chunk=128,policy=fp8_hopper",
    "tensor": "out",
    "inputs": "uniform",
}  # what README's Answer is about


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = _rows(results)
    return [_gaussian(rows), _one_sign(rows), _averages_out(rows), _flushed(rows), _prescale(rows)]


def answer(results: pd.DataFrame) -> list[Claim]:
    """What README's Answer says."""
    rows = _rows(results)
    lost = _bias(rows, "fp8_hopper").get(LONGEST)
    statement = "At 65,536 keys of one sign out lacks 4.24%."
    if lost is None:
        return [Claim(statement, None, "not measured")]
    return [Claim(statement, bool(round(-lost, 4) == 0.0424), f"{-lost:.3%}"), _gaussian(rows)]


def _rows(results: pd.DataFrame) -> pd.DataFrame:
    rows = results[(results["rank"] == -1) & results["error_rel"].notna()]
    said = rows["kernel_options"].map(pairs_of)
    rows = rows.assign(policy=said.str["policy"], flush=said.map(lambda each: int(each.get("flush_interval", 0))))
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
    statement = "On values of one sign out lacks 2^-15 for every 32 keys, to within a factor of two from 4,096 keys on."
    bias = _bias(rows, "fp8_hopper")
    bias = bias[bias.index >= 4096]
    if bias.empty:
        return Claim(statement, None, "not measured")
    ratio = bias / (-CUT * bias.index.to_numpy("float64"))
    said = ", ".join(f"{length:,}: {value:.2%}" for length, value in bias.items())
    return Claim(statement, bool(ratio.between(0.5, 2).all()), said)


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
    statement = "At 65,536 keys a flush every 128 keys leaves less than 0.1% of out, every 2,048 keys at most 0.4%."
    chosen = rows[
        (rows["tensor"] == "out") & (rows["inputs"] == "uniform") & (rows["seqlen"] == LONGEST) & (rows["flush"] > 0)
    ]
    bias = chosen[chosen["policy"] == "fp8_hopper"].groupby("flush")["bias"].mean().abs()
    if not {128, 2048} <= set(bias.index):
        return Claim(statement, None, "not measured")
    said = ", ".join(f"every {flush:,}: {value:.3%}" for flush, value in bias.items())
    return Claim(statement, bool(bias[128] < 1e-3 and bias[2048] <= 4e-3), said)


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
