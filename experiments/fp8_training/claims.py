"""What fp8_training claims about the casts of a backward's operands, checked against its table by Shapley's rule."""

import pandas as pd

from accuracy.core.number import shapley
from accuracy.core.path_text import pairs_of
from accuracy.results.claim import Claim

OPERANDS = ("q", "k", "v", "p", "ds", "do")
Shares = dict[str, float]
CASE = {
    "kernel_options": "backward_chunk=0,do=int8,ds=int8,granularity=block,k=int8,key_chunk=128,p=int8,p_prescale=0.0,"
    "policy=none,q=int8,smooth_k=True,v=int8",
    "tensor": "dq",
}  # what README's Answer is about


def claims(results: pd.DataFrame) -> list[Claim]:
    found = {
        (form, tensor): shares(results, form, tensor) for form in ("e4m3", "int8") for tensor in ("dq", "dk", "dv")
    }
    return [
        _most("In e4m3 no operand has half of the squared error of dq or dk.", found, ("dq", "dk"), OPERANDS, 0.5),
        _largest("In e4m3 dS has the largest share of dq and dk.", found, "e4m3"),
        _pair("In e4m3 P and dO have at least 80% of dv, each 40% to 60%.", found["e4m3", "dv"]),
        _least("In int8 dS has more than half of dq and dk.", found, "int8"),
        _most("In e4m3 q and k have less than 10% each of dq, dk and dv.", found, ("dq", "dk", "dv"), ("q", "k"), 0.1),
    ]  # fmt: skip


def answer(results: pd.DataFrame) -> list[Claim]:
    """What README's Answer says."""
    found = {("e4m3", tensor): shares(results, "e4m3", tensor) for tensor in ("dq", "dk")}
    dq, dv = (shares(results, "int8", tensor) for tensor in ("dq", "dv"))
    statement = "In int8 dS has 77% of dq's squared error and P 88% of dv's."
    holds = (round(dq["ds"], 2), round(dv["p"], 2)) == (0.77, 0.88) if dq and dv else None
    said = f"{_said('int8', 'dq', dq)}; {_said('int8', 'dv', dv)}"
    most = _most("In e4m3 no operand has half of the squared error of dq or dk.", found, ("dq", "dk"), OPERANDS, 0.5)
    return [Claim(statement, holds, said), most]


def shares(results: pd.DataFrame, form: str, tensor: str) -> Shares:
    """Of the mean square error by operand, when all are cast to a format; empty where not every set was measured."""
    rows = results[(results["rank"] == -1) & (results["tensor"] == tensor) & results["error_rms"].notna()]
    said = rows["kernel_options"].map(pairs_of)
    rows = rows[[("granularity" in each) == (form == "int8") for each in said]]
    kept = rows["kernel_options"].map(
        lambda text: frozenset(name for name in OPERANDS if pairs_of(text)[name] == "none")
    )
    value = dict(zip(kept, rows["error_rms"] ** 2, strict=True))
    if len(value) < 2 ** len(OPERANDS):
        return {}
    whole = value[frozenset()]
    return {place: share / whole for place, share in shapley(value, OPERANDS).items()}


def _said(form: str, tensor: str, each: Shares) -> str:
    return f"{form} {tensor}: " + ", ".join(f"{place} {share:.0%}" for place, share in each.items())


def _evidence(found: dict[tuple[str, str], Shares], form: str, tensors: tuple[str, ...]) -> str:
    return "; ".join(_said(form, tensor, found[form, tensor]) for tensor in tensors)


def _most(
    statement: str, found: dict[tuple[str, str], Shares], tensors: tuple[str, ...], places: tuple[str, ...], most: float
) -> Claim:
    if not all(found["e4m3", tensor] for tensor in tensors):
        return Claim(statement, None, "not every set of casts was measured")
    largest = max(found["e4m3", tensor][place] for tensor in tensors for place in places)
    return Claim(statement, largest < most, _evidence(found, "e4m3", tensors))


def _largest(statement: str, found: dict[tuple[str, str], Shares], form: str) -> Claim:
    if not (found[form, "dq"] and found[form, "dk"]):
        return Claim(statement, None, "not every set of casts was measured")
    first = [max(each, key=lambda place: each[place]) for each in (found[form, "dq"], found[form, "dk"])]
    return Claim(statement, first == ["ds", "ds"], _evidence(found, form, ("dq", "dk")))


def _least(statement: str, found: dict[tuple[str, str], Shares], form: str) -> Claim:
    if not (found[form, "dq"] and found[form, "dk"]):
        return Claim(statement, None, "not every set of casts was measured")
    least = min(found[form, tensor]["ds"] for tensor in ("dq", "dk"))
    return Claim(statement, least > 0.5, _evidence(found, form, ("dq", "dk", "dv")))


def _pair(statement: str, each: Shares) -> Claim:
    if not each:
        return Claim(statement, None, "not every set of casts was measured")
    holds = each["p"] + each["do"] >= 0.8 and all(0.4 <= each[place] <= 0.6 for place in ("p", "do"))
    return Claim(statement, holds, _said("e4m3", "dv", each))
