"""What does this run say in one sentence, and in three? Numbers only, and what is missing is said first."""

import math
from dataclasses import dataclass

import pandas as pd

from accuracy.chart.view import Chip
from accuracy.core.number import as_float, count, plain, scientific
from accuracy.core.probes import PROBES
from accuracy.report.folder import Run
from accuracy.report.section.heatmap import worst_cells
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
    """sentence: the verdict; further: what else is telling; chips: the verdict's parts at a glance; lines:
    three plain sentences for a terminal.
    """

    sentence: str
    further: tuple[str, ...]
    chips: tuple[Chip, ...]
    lines: tuple[str, ...]


def headline(
    run: Run, whole: pd.DataFrame, claims: list[Claim], diagnoses: list[Diagnosis], attribution: str = ""
) -> Headline:
    """whole: the labelled rows over all ranks. A diagnosis leads where one was asked for, or finds a bug; else the
    attribution, where there is one."""
    verdict = _verdict(run, diagnoses) or attribution
    growth = _fastest(whole)
    worst = _worst(whole)
    missing, unsupported = _incomplete(run, whole), _unsupported(run)
    exact, claimed = _agreement(whole), _claims(claims)
    state = " ".join(filter(None, (claimed, exact, missing, unsupported))) or "Every planned case was measured."
    return Headline(
        sentence=" ".join(filter(None, (missing, verdict or worst))),
        further=tuple(filter(None, (worst if verdict else "", growth, exact, claimed, unsupported))),
        chips=tuple(_chips(run, whole, claims)),
        lines=(verdict or growth, worst, state),
    )


def _verdict(run: Run, diagnoses: list[Diagnosis]) -> str:
    """The gravest variant's sentence, and how many others are not mere rounding."""
    grave = [each for each in diagnoses if each.label != ROUNDING]
    if not diagnoses or (run.experiment != DIAGNOSE and not any(each.label in (INVALID, LOGIC) for each in grave)):
        return ""
    first = diagnoses[0]
    text = first.sentence
    if len(diagnoses) > 1 and first.label != ROUNDING:
        text = f"{first.variant}: {first.sentence}"
        others = [each.variant for each in grave[1:]]
        text += f" Also not mere rounding: {', '.join(others)}." if others else ""
    return text


def _worst(whole: pd.DataFrame) -> str:
    if (whole["variant"] == SINGLE_DEVICE).all():
        return _furthest_kernel(whole)
    whole = whole[
        ~whole["inputs"].isin(list(PROBES))
    ]  # exact answers: single device may happen to have no error at all
    rounded = whole[(whole["dtype"] != EXACT) & (whole["variant"] != SINGLE_DEVICE)]
    found = worst_cells(rounded if len(rounded) else whole, 1)
    if found.empty:
        return "No case has a finite ratio to the single-device kernel."
    cell = found.iloc[0]
    return (
        f"Worst cell: {cell['tensor']} of {spoken(cell['series'])} in {spoken(cell['facet'])} at world size "
        f"{cell['world_size']} is {plain(cell['x_single_device'])}x as far from the reference as the"
        " single-device kernel "
        f"(relative error {scientific(cell['error_rel'])})."
    )


def _furthest_kernel(whole: pd.DataFrame) -> str:
    """Of a run of kernels alone: they are their own single device, and only the floor tells them apart."""
    rounded = whole[(whole["dtype"] != EXACT) & whole["x_floor"].map(math.isfinite).astype(bool)]
    if rounded.empty:
        return "No case has a finite ratio to the floor."
    cell = rounded.iloc[int(rounded["x_floor"].to_numpy().argmax())]
    return (
        f"Furthest from the floor: {cell['tensor']} of {cell['kernel']} in {spoken(cell['facet'])} is "
        f"{plain(cell['x_floor'])} times as far from the reference as the reference rounded to its dtype "
        f"(relative error {scientific(cell['error_rel'])})."
    )


def _fastest(whole: pd.DataFrame) -> str:
    """The series whose error surely grows fastest: the greatest lower end of the exponent's interval."""
    rounded = whole[(whole["dtype"] != EXACT) & (whole["variant"] != SINGLE_DEVICE)]
    fits: list[tuple[float, tuple[str, str, str], Growth]] = []
    for key, rows in (rounded if len(rounded) else whole).groupby(["series", "facet", "tensor"], sort=True):
        points = zip(rows["world_size"].map(as_float), rows["error_rel"].map(as_float), strict=True)
        growth = fit_growth(points)
        if isinstance(growth, Growth):
            fits.append((growth.low, tuple(map(str, key)), growth))  # type: ignore[arg-type]
    if not fits:
        return "No growth with the world size is fitted: fewer than 3 world sizes of 2 or more were measured."
    _, (series, facet, tensor), growth = max(fits, key=lambda fit: fit[:2])
    rows = whole[(whole["series"] == series) & (whole["facet"] == facet) & (whole["tensor"] == tensor)]
    last = rows[rows["world_size"] == rows["world_size"].max()]
    factor = pd.Series(last["x_single_device"]).median()
    return (
        f"Fastest growth: {spoken(series)} {spoken(facet)} {tensor}: {plain(factor)}x single device at world size "
        f"{last['world_size'].iloc[0]}, growing like {growth.text}: {growth.word}."
    )


def _agreement(whole: pd.DataFrame) -> str:
    exact = whole[(whole["dtype"] == EXACT) & whole["error_rel"].notna()]
    errors = exact["error_rel"]
    if errors.empty:
        return ""
    if not errors.map(math.isfinite).all():
        return "In float64 some error is not finite."
    row = exact.iloc[int(errors.to_numpy().argmax())]
    return (
        f"In float64 every variant is within {scientific(errors.max())} of the reference "
        f"(furthest: {row['tensor']} of {spoken(row['series'])} at world size {row['world_size']})."
    )


def _claims(claims: list[Claim]) -> str:
    if not claims:
        return ""
    held = sum(claim.holds is True for claim in claims)
    undecided = sum(claim.holds is None for claim in claims)
    text = f"Claims that hold: {held} of {len(claims)}"
    return text + (f"; {undecided} cannot be judged from this table." if undecided else ".")


def _incomplete(run: Run, whole: pd.DataFrame) -> str:
    statuses = run.cases["status"]
    parts = []
    if run.missing_cases:
        parts.append(f"Partial run: {len(run.cases):,} of {run.planned:,} planned cases are in the table.")
    elif run.partial and not run.problem:
        parts.append("The run did not record its end.")
    if (failed := int((statuses == FAILED).sum())) > 0:
        parts.append(f"{count(failed, 'case')} failed.")
    if broken := _nonfinite(whole):
        parts.append(f"{count(broken, 'tensor holds', 'tensors hold')} values that are not finite.")
    return " ".join(parts)


def _unsupported(run: Run) -> str:
    unsupported = int((run.cases["status"] == UNSUPPORTED).sum())
    return f"{count(unsupported, 'case was', 'cases were')} unsupported." if unsupported else ""


def _nonfinite(whole: pd.DataFrame) -> int:
    """Tensors with values that are not finite, counted by the metric or showing in the error."""
    counted = whole["nonfinite"].fillna(0) > 0
    shown = whole["error_rel"].map(lambda value: math.isinf(as_float(value))).astype(bool)
    return int((counted | shown).sum())


def _chips(run: Run, whole: pd.DataFrame, claims: list[Claim]) -> list[Chip]:
    statuses = run.cases["status"]
    failed, unsupported = int((statuses == FAILED).sum()), int((statuses == UNSUPPORTED).sum())
    chips = [Chip("partial run", "bad") if run.partial else Chip("complete run", "good")]
    chips.append(Chip(f"{count(failed, 'case')} failed", "bad") if failed else Chip("no case failed", "good"))
    if unsupported:
        chips.append(Chip(f"{count(unsupported, 'case')} unsupported", "open"))
    broken = _nonfinite(whole)
    chips.append(Chip(f"{count(broken, 'tensor')} not finite", "bad") if broken else Chip("all finite", "good"))
    if claims:
        held = sum(claim.holds is True for claim in claims)
        tone = "bad" if any(claim.holds is False for claim in claims) else "good" if held == len(claims) else "open"
        chips.append(Chip(f"claims: {held} of {len(claims)} hold", tone))
    return chips
