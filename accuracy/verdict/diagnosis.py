"""What is wrong with a variant, where, and why: the facts of each variant of a run.

In: the verdicts, the results, the traced steps and the hypotheses of a run. Out: `Facts` for every variant as
configured, which `accuracy.verdict.words` puts into sentences.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import DTYPES, PROBES, PRODUCTS
from accuracy.core.errors import NOT_SHARED
from accuracy.core.number import count, listed, plain
from accuracy.results.table import ALL_RANKS, FAILED, NOT_TAKEN, OK, TENSORS, TOO_FEW_RANKS
from accuracy.verdict import inside, label
from accuracy.verdict.evidence import INDEPENDENT, times_single_device
from accuracy.verdict.facts import Facts, Width
from accuracy.verdict.pattern import pattern_of
from accuracy.verdict.proof import causes, with_proofs
from accuracy.verdict.rows import in_blocks, names_of, with_names
from accuracy.verdict.rule.excess import EXACT
from accuracy.verdict.traced import TRACED
from accuracy.verdict.words import GROWS, KEPT_SUM, LONG_SUM

LONG, GROWN = 256, 1.15
"""Tokens from which errors are compared; by which that of sums in 16 bits grows from 528 to 2,304 at least, and
that of sums in float32 does not: 1.2 to 1.7, 0.96 to 1.0."""
TILE = 128
"""Keys that kernels take in one turn of their loop, as a rule: with no more there is no second turn to be wrong."""


def diagnoses(
    verdicts: pd.DataFrame, results: pd.DataFrame, steps: pd.DataFrame, hypotheses: pd.DataFrame
) -> list[Facts]:
    """Return the facts of every variant of a run, the gravest first."""
    names = names_of(results)
    rows = dict(iter(in_blocks(with_names(results, names)).groupby("named", sort=False)))
    found = []
    for name, judged in in_blocks(with_names(verdicts, names)).groupby("named", sort=False):
        cases = rows[name]["case_id"].unique()
        more = (table[table["case_id"].isin(cases)] for table in (steps, hypotheses))
        found.append(_facts(str(name), judged, rows[name], *more))
    return sorted(found, key=lambda each: label.LABELS.index(each.label))


def sentences(found: list[Facts]) -> list[str]:
    """Return one sentence for each variant, which names it where there are several."""
    plain = {each.variant: len(found) == 1 or each.sentence.startswith(f"{each.variant} ") for each in found}
    return [each.sentence if plain[each.variant] else f"{each.variant}: {each.sentence}" for each in found]


def _facts(
    name: str, verdicts: pd.DataFrame, results: pd.DataFrame, steps: pd.DataFrame, hypotheses: pd.DataFrame
) -> Facts:
    known, gaps = causes(hypotheses, results), _gaps(verdicts, results)
    verdicts = with_proofs(verdicts, known, results)
    pattern = pattern_of(verdicts, results, known)
    reported = pattern["leads"]
    if reported == label.NOT_MEASURED:
        return Facts(name, reported, unmeasured=gaps["unmeasured"], **pattern)
    unsteady = inside.with_mark(verdicts, inside.ORDER)
    pattern["unsteady"] = tuple(name for name in TENSORS if name in unsteady)
    options = results["options"].iloc[0]
    pattern["arithmetic"] = PRODUCTS.get(fields.arithmetic_of(options), "")
    pattern["window"] = fields.pairs_of(options).get("window", "")
    if reported == label.NONDETERMINISTIC:
        reported = next((each for each in label.BUGS if (verdicts["label"] == each).any()), reported)
    elif reported == label.ROUNDING:
        pattern["kept_sum"] = _kept_sum(verdicts, results)
        pattern |= {"inside": inside.marks(verdicts), "widths": _widths(results, pattern["dtypes"], verdicts)}
        sizes = verdicts.loc[verdicts["label"] != label.NOT_MEASURED, "world_size"]
        pattern["sizes_right"] = tuple(sorted(map(int, set(sizes))))
        few, pattern["missing_sizes"] = too_little(results)
        hardly = 2 * gaps["failed"] > gaps["cases"]
        reported = few or (label.HARDLY_CHECKED if hardly else reported)
    return Facts(name, reported, causes=known, **pattern, **gaps, **_trace(steps))


def _kept_sum(verdicts: pd.DataFrame, results: pd.DataFrame) -> str:
    """Return that a user's function keeps a sum over keys in 16 bits, where lse proves it, or that out's error in 16
    bits grows with the length and single device's does not, or a tensor's by as much as `excess` allows such sums, with
    its size at two lengths; else empty."""
    proven = any(each.get(inside.MARK) == inside.SUM_OF_KEYS for each in verdicts["numbers"])
    far = inside.with_mark(verdicts, inside.LONG_SUM)
    tensor = next((name for name in TENSORS if name in far and not proven), "out")
    rows = results[(results["tensor"] == tensor) & (results["rank"] == ALL_RANKS) & (results["inputs"] == INDEPENDENT)]
    rows = rows[(rows["status"] == OK) & rows["options"].map(fields.is_foreign)]
    equal = (rows["seqlen_q"] == rows["seqlen"]) | (tensor in far)
    rows = rows[proven | ((rows["seqlen"] >= LONG) & equal)]
    rows = rows[rows["dtype"].map(lambda name: DTYPES[name].bytes) == 2]
    times = times_single_device(rows).groupby([rows["dtype"], rows["seqlen"]]).max()
    for dtype, of_length in times.groupby(level=0):
        ends = of_length.iloc[[0, -1]]  # the shortest and the longest, which may be the same
        less, more = ends
        grows = more > GROWN * max(1.0, less)
        if proven or grows or tensor in far:
            told = [
                f"{plain(size)} times single device's at {count(length, 'token')}" for (_, length), size in ends.items()
            ]
            size = f"{', '.join(dict.fromkeys(told))}, in {dtype}"
            return KEPT_SUM.format(size) if proven else (GROWS if grows else LONG_SUM).format(tensor, size)
    return ""


def _widths(results: pd.DataFrame, dtypes: tuple[str, ...], verdicts: pd.DataFrame) -> tuple[Width, ...]:
    """Return how far a healthy variant is from the reference, for each width of dtypes, as its largest ratio to single
    device over problems, seeds and world sizes, at least 1. A ratio in 16 bits says nothing of one in float32. Inputs
    whose answer is exact, rows in which neither single device nor the floor has an error, and float64, the reference's
    own dtype, have no ratio."""
    if inside.FORMAT in inside.marks(verdicts) or fields.arithmetic_of(results["options"].iloc[0]):
        dtypes = tuple(dtype for dtype in dtypes if dtype != inside.FINEST)
    rows = results[(results["rank"] == ALL_RANKS) & (results["status"] == OK) & results["dtype"].isin(dtypes)]
    rows = rows[(rows["tensor"] != "lse") & ~rows["inputs"].isin(list(PROBES)) & rows["error_rel"].notna()]
    rows = rows[(rows["single_device_rel"] > 0) | (rows["floor_rel"] > 0)]
    rows = rows.assign(_times=times_single_device(rows), _width=rows["dtype"].map(lambda name: DTYPES[name].bytes))
    found = []
    for _, same in rows.groupby("_width"):
        names = tuple(name for name in dtypes if name in set(same["dtype"]))
        largest = same.groupby("inputs")["_times"].max().clip(lower=1.0)
        times = math.nan if EXACT in names else float(largest.get(INDEPENDENT, largest.max()))
        found.append(Width(names, times, float(largest.max()), str(largest.idxmax())))
    return tuple(found)


def _gaps(verdicts: pd.DataFrame, results: pd.DataFrame) -> dict[str, Any]:
    """Return what a run leaves open: settings not tried, failures, dtypes and tensors without numbers, inputs that
    cannot be judged. A dtype in which nothing was measured is one that the variant refuses: no failure of its cases."""
    has_numbers = verdicts["label"] != label.NOT_MEASURED
    without = verdicts[~verdicts["dtype"].isin(verdicts.loc[has_numbers, "dtype"])].drop_duplicates("dtype")
    cases = results[results["status"].isin((OK, FAILED))].drop_duplicates("case_id")
    status = cases.loc[~cases["dtype"].isin(without["dtype"]), "status"]
    reasons = without.groupby("sentence", sort=False)["dtype"].agg(tuple)
    returned = set(verdicts.loc[has_numbers, "tensor"])
    unsure = (results["world_size"] > 1) | results["options"].map(fields.is_foreign).astype(bool)
    uncertain = results[unsure & results["error_rel"].notna() & results["condition_sum"].isna()]
    return {
        "not_tried": _not_tried(results[(results["status"] == OK) & results["mask"].notna()]),
        "not_taken": _not_taken(results),
        "failed": int((status == FAILED).sum()),
        "cases": len(status),
        "failures": _failures(results),
        "unmeasured": reasons.to_dict(),
        "not_returned": tuple(name for name in ("lse", "dq", "dk", "dv") if name not in returned),
        "unjudged": tuple(sorted({*uncertain["inputs"]} - {*PROBES, INDEPENDENT})),
    }


def _not_taken(results: pd.DataFrame) -> tuple[str, ...]:
    """Return what a user's function refused when it was asked, those of one reason together."""
    reasons = results["reason"].astype(str)
    told = reasons[reasons.str.startswith(NOT_TAKEN)].str.removeprefix(NOT_TAKEN).drop_duplicates()
    found: dict[str, list[str]] = {}
    for each in told:
        question, _, reason = each.partition(" (")
        found.setdefault(reason, []).append(question)
    return tuple(f"{listed(each)} ({reason}" for reason, each in found.items())


def _not_tried(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the settings that no measured case of a variant has, or none of more than a tile of keys: a verdict holds
    for what was measured."""
    if rows.empty:
        return ()
    masks, sizes = " ".join({*rows["mask"].astype(str)}), rows["world_size"]
    windows, documents = (rows["mask"].str.contains(word) for word in ("window=", "documents="))
    softcaps, longest = rows["softcap"] > 0, int(rows["seqlen"].max())
    within: dict[int, list[str]] = {}  # by the most tokens that a feature was tried over
    for name, has in (("windows", windows), ("packed documents", documents), ("a softcap", softcaps)):
        if has.any() and (tokens := int(rows.loc[has, "seqlen"].max())) <= TILE and tokens < longest:
            within.setdefault(tokens, []).append(name)
    several, own = sizes[sizes > 1], rows["options"].map(fields.is_foreign).any()
    few = rows.loc[rows["seqlen_q"] != rows["seqlen"], "mask"].astype(str)  # masks of fewer queries than keys
    missing = {
        "a causal mask": "causal" not in masks,
        "a full mask": "full" not in masks,
        "windows": not windows.any(),
        "packed documents": not documents.any(),
        "another scale than D^-0.5": own & np.isclose(rows["softmax_scale"], rows["head_dim"] ** -0.5).all(),
        "a softcap": not softcaps.any(),
        "lengths that ranks cannot share": len(several) and "padding=" not in masks,
        "fewer queries than keys": few.empty,
        "a causal mask over fewer queries than keys": len(few) and not few.str.contains("causal").any(),
        "grouped heads": (rows["heads"] == rows["heads_kv"]).all(),
        "batches": not (rows["batch"] > 1).any(),
        "odd numbers of ranks": len(several) and not (several % 2 == 1).any(),
        "a gradient of lse": own and (rows["tensor"] == "lse").any(),
        "runs again": rows["repeats_differ"].isna().all(),
    }
    most = f"more than {count(longest, 'token')} or {count(int(sizes.max()), 'rank')}"
    short = [f"{' or '.join(names)} over more than {count(tokens, 'token')}" for tokens, names in within.items()]
    return *(name for name, lacks in missing.items() if lacks), *short, most


def too_little(results: pd.DataFrame) -> tuple[str | None, dict[int, str]]:
    """Return the label for world sizes that were planned and not measured (None: there are none), and the reason for
    each of these sizes.

    A function of one device has one rank, however many were planned. A case that a variant of this package or an
    adapter says it cannot do is no gap. Too few devices are a gap only where no case of several ranks was measured.
    """
    several = results[results["world_size"] > 1]
    several = several.assign(reason=several["reason"].fillna("").astype(str))
    if several["reason"].str.contains(NOT_SHARED, regex=False).any():
        return None, {}
    missing: dict[int, str] = {}
    some = bool((several["status"] == OK).any())
    for size, rows in several.groupby("world_size"):
        lacking = rows["reason"].str.startswith(TOO_FEW_RANKS)
        gaps = (rows["status"] == FAILED) | rows["options"].map(fields.is_foreign)
        gaps = lacking if lacking.any() and not some else gaps & ~lacking
        if not (rows["status"] == OK).any() and gaps.any():
            missing[int(str(size))] = str(rows.loc[gaps, "reason"].iloc[0])
    return ((label.MISSING_RANKS if some else label.ONE_RANK) if missing else None), missing


def _failures(results: pd.DataFrame) -> tuple[tuple[int, str, str], ...]:
    """Return the kinds of failures in dtypes that other cases measured: how many, the first's settings, the reason."""
    measured = set(results.loc[results["status"] == OK, "dtype"])
    failed = results[(results["status"] == FAILED) & results["tensor"].isna() & results["dtype"].isin(measured)]
    kinds = failed["reason"].astype(str).str.replace(r"\d+", "N", regex=True)
    names = ("seqlen", "batch", "heads", "heads_kv", "head_dim", "mask", "world_size")
    found = []
    for _, rows in failed.groupby(kinds, sort=False):
        first = rows.iloc[0]
        found.append((len(rows), ", ".join(f"{name}={first[name]}" for name in names), str(first["reason"])))
    return tuple(found)


def _trace(steps: pd.DataFrame) -> dict[str, Any]:
    """Return the first traced step outside of the rounding band, forward before backward, and the findings: the
    first case's before others', forward before backward, then as in `TRACED`."""
    steps = steps.assign(_way=steps["way"] != "forward")
    found = steps["finding"].notna()
    findings, steps = steps[found], steps[~found]
    off = steps[~(steps["error_rel"] <= steps["band"]) | (steps["nonfinite"] > 0)]
    first = off.sort_values(["_way", "step", "rank"], kind="stable").head(1).to_dict("records")
    findings = findings.assign(
        _other=findings["case_id"] != next(iter(findings["case_id"]), ""),
        _kind=findings["finding"].map([*TRACED].index),
    )
    account = findings.sort_values(["_other", "_way", "_kind", "rank", "step"], kind="stable").to_dict("records")
    return {"step": next(iter(first), None if steps.empty else {}), "account": tuple(account)}
