"""What fp8_remedies claims about scales, smoothing, rotation and prescale, checked against its table."""

import pandas as pd

from accuracy.core.path_text import pairs_of
from accuracy.results.claim import Claim

DRAWN = ("gaussian", "outliers", "heavy_channels")
REMEDIES = ("fp8_block", "fp8_token", "fp8_smooth", "fp8_hadamard")
BOTH = "fp8_block and rotation"
Times = dict[tuple[str, str, str], float]
CASE = {
    "kernel_options": "backward_chunk=0,key_chunk=128,policy=fp8_hadamard",
    "tensor": "out",
    "inputs": "outliers",
}  # what README's Answer is about


def claims(results: pd.DataFrame) -> list[Claim]:
    times, rms = _measured(results)
    if not times:
        return [Claim("Remedies are compared on three distributions.", None, "not measured")]
    return [_gaussian(times), _outliers(times, rms), _prescale(times), _heavy(times), _blocks(times)]


def answer(results: pd.DataFrame) -> list[Claim]:
    """What README's Answer says."""
    times, _ = _measured(results)
    if not times:
        return [Claim("Remedies are compared on three distributions.", None, "not measured")]
    rotation, block = (round(times["out", "outliers", name], 2) for name in ("fp8_hadamard", "fp8_block"))
    worst = max(times["dv", inputs, "fp8_no_prescale"] for inputs in DRAWN)
    statement = "On outliers a rotation gives out 0.60 times the error of scales of tensors, block scales 0.79 times."
    return [
        _gaussian(times),
        Claim(statement, (rotation, block) == (0.6, 0.79), f"{rotation}, {block}"),
        Claim("Without a prescale dv has up to 6.1 times the error.", round(worst, 1) == 6.1, f"{worst:.2f}"),
    ]


def _measured(results: pd.DataFrame) -> "tuple[Times, pd.Series[float]]":
    """Errors over those of scales of tensors, and root mean squares; empty where a distribution is missing."""
    rows = results[(results["rank"] == -1) & results["error_rel"].notna()]
    said = rows["kernel_options"].map(pairs_of)
    policy = [BOTH if "hadamard" in each else each.get("policy") for each in said]
    mean = rows.assign(policy=policy).groupby(["tensor", "inputs", "policy"])[["error_rel", "error_rms"]].mean()
    error = mean["error_rel"]
    if not {("out", inputs, "nvfp4") for inputs in DRAWN} <= set(error.index):
        return {}, mean["error_rms"]
    times = {
        (tensor, inputs, name): error[tensor, inputs, name] / error[tensor, inputs, "fp8_tensor"]
        for tensor, inputs, name in error.index
    }
    return times, mean["error_rms"]


def _listed(times: Times, tensor: str, inputs: str, names: tuple[str, ...]) -> str:
    return f"{inputs} {tensor}: " + ", ".join(f"{name} {times[tensor, inputs, name]:.2f}" for name in names)


def _gaussian(times: Times) -> Claim:
    statement = "On Gaussian inputs no remedy changes out's error by more than 10%."
    worst = max(abs(times["out", "gaussian", name] - 1) for name in REMEDIES)
    return Claim(statement, worst <= 0.1, _listed(times, "out", "gaussian", REMEDIES))


def _outliers(times: Times, rms: "pd.Series[float]") -> Claim:
    statement = (
        "On outliers the rotation lowers out's error by a third at least, scales of blocks alone by less than 10%."
    )
    holds = times["out", "outliers", "fp8_hadamard"] <= 2 / 3 and times["out", "outliers", "fp8_block"] > 0.9
    names = ("fp8_block", "fp8_hadamard", BOTH)
    sizes = ", ".join(f"{name} {rms['out', 'outliers', name]:.2g}" for name in ("fp8_tensor", *names))
    return Claim(statement, holds, f"{_listed(times, 'out', 'outliers', names)}; root mean square {sizes}")


def _prescale(times: Times) -> Claim:
    statement = "Without a prescale dv is at least 1.5 times as far off on all drawn inputs, out by less than 10%."
    dv, out = ([times[tensor, inputs, "fp8_no_prescale"] for inputs in DRAWN] for tensor in ("dv", "out"))
    said = ", ".join(
        f"{inputs}: dv {one:.2f}, out {other:.2f}" for inputs, one, other in zip(DRAWN, dv, out, strict=True)
    )
    return Claim(statement, min(dv) >= 1.5 and max(out) < 1.1, said)


def _heavy(times: Times) -> Claim:
    statement = "On heavy channels neither smoothing nor the rotation changes out's error by more than 10%."
    names = ("fp8_smooth", "fp8_hadamard")
    worst = max(abs(times["out", "heavy_channels", name] - 1) for name in names)
    return Claim(statement, worst <= 0.1, _listed(times, "out", "heavy_channels", names))


def _blocks(times: Times) -> Claim:
    statement = "mxfp8 is within 15% of fp8_tensor on all drawn inputs, nvfp4 3 to 5 times as far off."
    mx, nv = ([times["out", inputs, name] for inputs in DRAWN] for name in ("mxfp8", "nvfp4"))
    holds = max(abs(each - 1) for each in mx) <= 0.15 and min(nv) >= 3 and max(nv) <= 5
    return Claim(
        statement, holds, "; ".join(_listed(times, "out", inputs, ("mxfp8", "int8", "nvfp4")) for inputs in DRAWN)
    )
