"""What does this run say in one sentence, and in three? Numbers only, and what is missing is said first."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from accuracy.chart.view import Chip
from accuracy.core.number import count, geometric_mean, plain, scientific
from accuracy.core.probes import PROBES
from accuracy.report.folder import Run
from accuracy.report.series import SINGLE_DEVICE, spoken
from accuracy.results.claim import Claim
from accuracy.results.table import FAILED, UNSUPPORTED
from accuracy.verdict.diagnosis import Diagnosis
from accuracy.verdict.growth import Growth, fit_growth
from accuracy.verdict.label import INVALID, LOGIC, ROUNDING

DIAGNOSE = "diagnose"
EXACT = "float64"  # its rounding is far below all others': it shows whether the schedule is right


@dataclass(frozen=True)
class Headline:
    """sentence: the verdict; further: what else is telling; chips: the verdict's parts at a glance; lines: three plain
    sentences for a terminal."""

    sentence: str
    further: tuple[str, ...]
    chips: tuple[Chip, ...]
    lines: tuple[str, ...]


def headline(
    run: Run, whole: pd.DataFrame, claims: list[Claim], diagnoses: list[Diagnosis], attribution: str = ""
) -> Headline:
    """whole: the labelled rows over all ranks. A diagnosis leads where one was asked for, or finds a bug; else the
    attribution, where there is one."""
    failed, cut = (int((run.cases["status"] == status).sum()) for status in (FAILED, UNSUPPORTED))
    broken = int(((whole["nonfinite"].fillna(0) > 0) | np.isinf(whole["error_rel"])).sum())
    verdict = _verdict(run, diagnoses) or attribution
    growth, worst = _fastest(whole), _worst(whole)
    missing = _incomplete(run, failed, broken)
    unsupported = f"{count(cut, 'case was', 'cases were')} unsupported." if cut else ""
    exact, claimed = _agreement(whole), _claims(claims)
    chips = (
        Chip("partial run", "bad") if run.partial else Chip("complete run", "good"),
        Chip(f"{count(failed, 'case')} failed", "bad") if failed else Chip("no case failed", "good"),
        *([Chip(f"{count(cut, 'case')} unsupported", "open")] if cut else ()),
        Chip(f"{count(broken, 'tensor')} not finite", "bad") if broken else Chip("all finite", "good"),
        *_claims_chip(claims),
    )
    state = " ".join(filter(None, (claimed, exact, missing, unsupported))) or "Every planned case was measured."
    return Headline(
        sentence=" ".join(filter(None, (missing, verdict or worst))),
        further=tuple(filter(None, (worst if verdict else "", growth, exact, claimed, unsupported))),
        chips=chips,
        lines=(verdict or growth, worst, state),
    )


def _verdict(run: Run, diagnoses: list[Diagnosis]) -> str:
    grave = [each for each in diagnoses if each.label != ROUNDING]
    if not diagnoses or (run.experiment != DIAGNOSE and not any(each.label in (INVALID, LOGIC) for each in grave)):
        return ""
    first = diagnoses[0]
    if len(diagnoses) == 1 or first.label == ROUNDING:
        return first.sentence
    others = ", ".join(each.variant for each in grave[1:])
    return f"{first.variant}: {first.sentence}" + (f" Also not mere rounding: {others}." if others else "")


def _worst(whole: pd.DataFrame) -> str:
    """The cell (series, facet, world size, tensor) furthest from single device; geometric mean over seeds."""
    if (whole["variant"] == SINGLE_DEVICE).all():
        return _furthest_kernel(whole)
    keys = ["series", "facet", "dtype", "world_size", "tensor"]
    uneven = whole[~whole["inputs"].isin(list(PROBES))]  # of exact answers, single device may have no error at all
    found = _distributed(uneven).groupby(keys)[["x_single_device", "error_rel"]].agg(geometric_mean).reset_index()
    found = found[np.isfinite(found["x_single_device"])]
    if found.empty:
        return "No case has a finite ratio to the single-device kernel."
    cell = found.sort_values(["x_single_device", *keys]).iloc[-1]
    return (
        f"Worst cell: {cell['tensor']} of {spoken(cell['series'])} in {spoken(cell['facet'])} at world size "
        f"{cell['world_size']} is {plain(cell['x_single_device'])}x as far from the reference as the single-device "
        f"kernel (relative error {scientific(cell['error_rel'])})."
    )


def _distributed(whole: pd.DataFrame) -> pd.DataFrame:
    """The rows that were rounded and are not single device's own; all where there are none."""
    rounded = whole[(whole["dtype"] != EXACT) & (whole["variant"] != SINGLE_DEVICE)]
    return rounded if len(rounded) else whole


def _furthest_kernel(whole: pd.DataFrame) -> str:
    """Of a run of kernels alone: they are their own single device, and only the floor tells them apart."""
    rounded = whole[(whole["dtype"] != EXACT) & np.isfinite(whole["x_floor"])]
    if rounded.empty:
        return "No case has a finite ratio to the floor."
    cell = rounded.loc[rounded["x_floor"].idxmax()]
    return (
        f"Furthest from the floor: {cell['tensor']} of {cell['kernel']} in {spoken(cell['facet'])} is "
        f"{plain(cell['x_floor'])} times as far from the reference as the reference rounded to its dtype "
        f"(relative error {scientific(cell['error_rel'])})."
    )


def _fastest(whole: pd.DataFrame) -> str:
    """The series whose error surely grows fastest: the greatest lower end of the exponent's interval."""
    keys = ["series", "facet", "tensor"]
    fits = []
    for key, rows in _distributed(whole).groupby(keys):
        growth = fit_growth(zip(rows["world_size"], rows["error_rel"], strict=True))
        if isinstance(growth, Growth):
            fits.append((growth.low, tuple(map(str, key)), growth))
    if not fits:
        return "No growth with the world size is fitted: fewer than 3 world sizes of 2 or more were measured."
    _, (series, facet, tensor), growth = max(fits, key=lambda fit: fit[:2])
    rows = whole[(whole[keys] == [series, facet, tensor]).all(axis=1)]
    size = rows["world_size"].max()
    factor = rows.loc[rows["world_size"] == size, "x_single_device"].median()
    return (
        f"Fastest growth: {spoken(series)} {spoken(facet)} {tensor}: {plain(factor)}x single device at world size "
        f"{size}, growing like {growth.text}: {growth.word}."
    )


def _agreement(whole: pd.DataFrame) -> str:
    exact = whole[(whole["dtype"] == EXACT) & whole["error_rel"].notna()]
    if exact.empty:
        return ""
    if not np.isfinite(exact["error_rel"]).all():
        return "In float64 some error is not finite."
    row = exact.iloc[int(exact["error_rel"].argmax())]
    return (
        f"In float64 every variant is within {scientific(row['error_rel'])} of the reference "
        f"(furthest: {row['tensor']} of {spoken(row['series'])} at world size {row['world_size']})."
    )


def _claims(claims: list[Claim]) -> str:
    found = [claim.holds for claim in claims]
    text = f"Claims that hold: {found.count(True)} of {len(found)}"
    text += f"; {found.count(None)} cannot be judged from this table." if None in found else "."
    return text if claims else ""


def _claims_chip(claims: list[Claim]) -> list[Chip]:
    found = [claim.holds for claim in claims]
    tone = "bad" if False in found else "open" if None in found else "good"
    return [Chip(f"claims: {found.count(True)} of {len(found)} hold", tone)] if claims else []


def _incomplete(run: Run, failed: int, broken: int) -> str:
    parts = []
    if run.missing_cases:
        parts.append(f"Partial run: {len(run.cases):,} of {run.planned:,} planned cases are in the table.")
    elif run.partial and not run.problem:
        parts.append("The run did not record its end.")
    if failed:
        parts.append(f"{count(failed, 'case')} failed.")
    if broken:
        parts.append(f"{count(broken, 'tensor holds', 'tensors hold')} values that are not finite.")
    return " ".join(parts)
