"""Which cause is proven? From the rows of `hypotheses/`: the one that leaves nothing but rounding where no other does.

Proven: the best hypothesis leaves at most 1.5 times the expected rounding, and every rival at least 10 times. A rival
is one whose prediction is another one; hypotheses with the same prediction are one cause, and of those with as few
fitted numbers all are named. Judged in the finest dtype that has rows: the cause that most of its cases prove, since
at few ranks and tokens several causes predict the same: with 5 ranks and a scale of 0.2 a mean over ranks is the scale
once more. Where cases with as many hypotheses do not prove it, too, the cause says which ones do. `with_proofs` gives
verdicts the labels that proven causes ask for.
"""

import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import DTYPES, FORMATS, PROBES
from accuracy.results.table import ALL_RANKS, FOLLOWS, RULED_OUT, SAME, SUM
from accuracy.verdict.facts import FORWARD, Cause
from accuracy.verdict.floor import LEVEL, WITHIN, WITHIN_EXACT
from accuracy.verdict.inside import MARK, SUM_OF_KEYS, is_healthy
from accuracy.verdict.label import BIASED, BUGS, EXCESS_ROUNDING, LABELS, LOGIC, PRECISION_FLOOR, ROUNDING
from accuracy.verdict.rows import is_plain

BOTH = "out and lse are "
SHAPE = ("world_size", "heads_kv", "heads", "batch", "head_dim", "mask", "seqlen")
"""What one case may have and another has not, what causes hang on most often first."""
BY_SIZE = ("ladder", "beyond", "excess")
"""Rules that judge an error by its size."""
FACTOR = "a constant factor"
"""The hypothesis of one number. A factor that is off by d leaves a residual of d."""
CASE = (*fields.names(fields.PROBLEM), "dtype", "world_size")
DOUBTFUL = (PRECISION_FLOOR, EXCESS_ROUNDING, BIASED)


def causes(hypotheses: pd.DataFrame, results: pd.DataFrame) -> dict[str, Cause]:
    """The cause of each tensor of one variant."""
    if hypotheses.empty:
        return {}
    about = results.drop_duplicates("case_id").set_index("case_id")[["dtype", "inputs", *SHAPE]]
    rows = hypotheses[hypotheses["case_id"].isin(about.index)].join(about, on="case_id")
    tensors = rows.groupby("case_id")["tensor"].agg(set)
    one = ~rows["case_id"].map(tensors.map({*FORWARD}.issubset)).astype(bool)
    rows = rows[~(one & rows["cause"].str.startswith(BOTH))]  # only one of the two is wrong
    rows = _without_vague_constants(_without_scales_of_some_inputs(rows, results))
    return {str(tensor): _of_tensor(str(tensor), same) for tensor, same in rows.groupby("tensor", sort=False)}


def _without_scales_of_some_inputs(rows: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows but those that say that the scale is another one where out is right on Gaussian inputs, all else
    equal; the case's next hypothesis is its nearest one then.

    A scale is one of all inputs. Off by half of itself or more it moves out on Gaussian inputs by half as much as their
    scores spread: by a tenth and more under a scale of 0.2 / sqrt(D) or more. Scores that are cut off below some number
    are equal on shifted inputs, as those of a scale of 0 are, and right on Gaussian ones.
    """
    told = rows["cause"].str.extract(r"the softmax scale is (-?\d[\d.e+-]*)", expand=False).astype(float)
    if told.isna().all() or "tensor" not in results:
        return rows
    scales = results.drop_duplicates("case_id").set_index("case_id")["softmax_scale"]
    far = (told / rows["case_id"].map(scales) - 1).abs() >= 0.5
    cells = pd.Series(_cells(results), results.index)
    gaussian = (results["inputs"] == "gaussian") & (results["tensor"] == "out") & (results["rank"] == ALL_RANKS)
    right = {*cells[gaussian & (results["error_rel"] < 0.01)]} - {*cells[gaussian & ~(results["error_rel"] < 0.01)]}
    of_case = dict(zip(results["case_id"], cells, strict=True))
    refuted = far & (rows["inputs"] != "gaussian") & rows["case_id"].map(lambda case: of_case[case] in right)
    left = rows[~refuted].copy()
    key = ["case_id", "tensor"]
    changed = left.set_index(key).index.isin(rows[refuted].set_index(key).index)
    left.loc[changed & ~left.duplicated(key), "from_best"] = 0.0
    return left


def _of_tensor(tensor: str, rows: pd.DataFrame) -> Cause:
    """Gaussian inputs before others, the finest dtype before others, a causal or full mask before windows, documents
    and padding, then what most cases prove, of several problems and sizes, at the largest world size."""
    cases = [_of_case(tensor, case) for _, case in rows.groupby("case_id", sort=False)]
    simple = set(rows.loc[rows["inputs"] == "gaussian", "case_id"])
    if simple and len(simple) < rows["case_id"].nunique():
        return _of_tensor(tensor, rows[rows["case_id"].isin(simple)])
    finest = max(DTYPES[each.dtype].precision for each in cases)
    rows = rows[rows["dtype"].map(lambda name: DTYPES[name].precision) == finest]
    rows = _without_coincidences(rows, {each.case for each in cases if each.proven})
    cases = [_of_case(tensor, case) for _, case in rows.groupby("case_id", sort=False)]
    proven = [each for each in cases if each.proven]
    votes = Counter(name for each in proven for name in each.alike)
    tried = max((each.tried for each in proven), default=0)  # few on large problems: the simplest may lack

    plain = {*rows.loc[is_plain(rows["mask"]), "case_id"]}

    def telling(each: Cause) -> tuple[bool, bool, bool, int, int]:
        told = max(votes[name] for name in each.names)
        return each.proven, 5 * each.tried >= 3 * tried, each.case in plain, told, each.world_size

    best = max(cases, key=telling)
    if not best.proven:
        return best
    often = Counter(clause for each in proven for clause in {*each.clauses})
    most = max(votes[name] for name in best.names)
    named = [(name, clause) for name, clause in zip(best.names, best.clauses, strict=True) if votes[name] == most]
    first = {name: max(often[clause] for other, clause in named if other == name) for name, _ in named}
    names, clauses = zip(*(each for each in named if often[each[1]] == first[each[0]]), strict=True)
    proving = frozenset(each.case for each in proven if each.alike & {*names})
    about = rows.drop_duplicates("case_id").set_index("case_id")
    padded = {*about.index[about["mask"].str.contains("padding") & (about["world_size"] > 1)]}  # of no rank: not asked
    asked = [each for each in cases if 5 * each.tried >= 3 * best.tried and (each.proven or each.leaves >= RULED_OUT)]
    others = [each for each in asked if each.case not in proving | padded]
    where, elsewhere = _where(proving, {each.case for each in others}, about)
    second = next((each for each in others if all(o.proven and {*each.names} & o.alike for o in others)), None)
    further = second.clauses[0] if second else _other_factor(rows, clauses[0], proving)
    return replace(
        best, names=names, clauses=clauses, cases=proving, proving=where, refuting=elsewhere, further=further
    )


def _without_coincidences(rows: pd.DataFrame, proven: set[str]) -> pd.DataFrame:
    """Return the rows but those of a hypothesis with a known constant, where a proven case needs another number for the
    same hypothesis. With a scale of 0.2 and 40 dims, sqrt(40/64) is 1/(the softmax scale x sqrt(D)), too. A case that
    has no fitted number keeps its constant."""
    key = ["case_id", "hypothesis"]
    holds = rows[rows["from_best"] <= SAME * rows["expected"]].groupby(key)["freedom"].agg(["min", "max"])
    alone = holds[(holds["min"] > 0) & holds.index.get_level_values(0).isin(proven)]
    refuted = {*alone.index.get_level_values(1)}
    fitted = {*holds.index[holds["max"] > 0]}
    of_fitted = pd.Series([each in fitted for each in rows[key].itertuples(index=False, name=None)], rows.index)
    return rows[~(rows["hypothesis"].isin(refuted) & of_fitted & (rows["freedom"] == 0))]


def _without_vague_constants(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows but those that say that a factor is a known constant near 1, of cases in 16 bits with a fitted
    one. 1.004 and 1 + 2^-8 are alike there: a factor is known to a quarter of a unit roundoff, which is a hundredth or
    more of what it is off by."""
    factor = rows["hypothesis"] == FACTOR
    fitted = rows[factor & (rows["freedom"] == 1)]
    short = fitted["dtype"].map({each.name: 25 * each.unit_roundoff for each in DTYPES.values() if each.bytes == 2})
    off = (pd.to_numeric(fitted["parameter"], errors="coerce") - 1).abs()
    vague = fitted.loc[off < short.astype(float), "case_id"]
    return rows[~(factor & (rows["freedom"] == 0) & rows["case_id"].isin(vague))]


def _other_factor(rows: pd.DataFrame, clause: str, proving: frozenset[str]) -> str:
    """Return the clause of the first case whose fitted factor is not this clause's; empty: there is none."""
    fitted = rows[(rows["hypothesis"] == FACTOR) & (rows["freedom"] == 1) & rows["case_id"].isin(proving)]
    factors = pd.to_numeric(fitted["parameter"], errors="coerce")
    own = factors[fitted["cause"] == clause].to_numpy()
    if not len(own):
        return ""
    apart = (factors - own[0]).abs() >= RULED_OUT * fitted["expected"]
    return str(next(iter(fitted.loc[apart, "cause"]), ""))


def _where(proven: frozenset[str], others: set[str], about: pd.DataFrame) -> tuple[str, str]:
    """Which cases prove a cause, and which have an error that it does not make; empty where all prove it. Cases on
    which fewer than three fifths as many hypotheses were tried, as on large problems, tell nothing."""
    if not others:
        return "", ""
    values = {name: [{*about.loc[[*ids], name]} for ids in (proven, others)] for name in SHAPE}
    apart = {name: each for name, each in values.items() if not each[0] & each[1]}
    if len(apart) == 1:  # else what else the cases differ in may be it
        (name, (holds, fails)), *_ = apart.items()
        return f"{name}={', '.join(map(str, sorted(holds)))}", ", ".join(map(str, sorted(fails)))
    return f"{len(proven)} of {len(proven) + len(others)} cases", ""


def _of_case(tensor: str, rows: pd.DataFrame) -> Cause:
    """Rows come best first."""
    best = rows.iloc[0]
    same = rows["from_best"] <= SAME * rows["expected"]
    fewest = min(best["freedom"], max(1, rows.loc[same, "freedom"].min()))  # else 64 fitted numbers for a factor
    ties = rows[same & (rows["freedom"] == fewest)].drop_duplicates(["hypothesis", "parameter"])
    fitted = (rows["hypothesis"] == best["hypothesis"]) & (rows["freedom"] > best["freedom"])  # the same idea, fitted
    rivals = rows[~same & ~fitted]
    clauses = tuple(ties["cause"])
    if str(best["dtype"]) == "float32":  # both have 11 bits
        clauses = tuple(each.replace("cast to float16", "cast to float16 or TF32") for each in clauses)
    if DTYPES[str(best["dtype"])].bytes == 2:  # where dq cannot tell which of the two is wrong
        clauses = tuple(each.replace("wrong lse and delta", "wrong lse or delta") for each in clauses)
    return Cause(
        tensor=tensor,
        families=tuple(dict.fromkeys(rows.loc[same, "family"])),
        names=tuple(ties["hypothesis"]),
        clauses=clauses,
        leaves=float(best["residual"] / best["expected"]),
        rival=float((rivals["residual"] / rivals["expected"]).min()) if len(rivals) else float("inf"),
        tried=int(best["tried"]),
        dtype=str(best["dtype"]),
        world_size=int(best["world_size"]),
        blocks=_blocks(ties),
        case=str(best["case_id"]),
        alike=frozenset(rows.loc[same, "hypothesis"]),
    )


def _blocks(ties: pd.DataFrame) -> dict[tuple[int, int], float]:
    """The blocks that the first hypothesis on whole blocks names, see `accuracy/explain/hypothesis/blocks.py`."""
    named = ties.loc[ties["hypothesis"] == "blocks (own)", "parameter"].astype(str).head(1)
    found = re.findall(r"(\d+):(\d+)=(\S+)", " ".join(named))
    return {(int(queries), int(keys)): float(count) for queries, keys, count in found}


def with_proofs(verdicts: pd.DataFrame, known: dict[str, Cause], results: pd.DataFrame) -> pd.DataFrame:
    """One variant's verdicts with the labels that proven causes ask for.

    Where something else than a cast is proven to make an error, it is no rounding, however large or small it is; but a
    fact that is no fault, as float32 inside, stays one in problems whose cases do not prove it. A gradient that is
    right for the returned out and lse is as bad as these.
    """
    proven = {name: each for name, each in known.items() if each.proven}
    verdicts = _as_casts(verdicts, {name: each for name, each in proven.items() if each.is_cast})
    if any(SUM in each.names for each in proven.values()):
        verdicts = _as_kept_sums(verdicts, results)
    following = {name for name, each in proven.items() if FOLLOWS in each.names}
    following |= {"delta"} if following else set()
    made = {(name, each.dtype) for name, each in proven.items() if not each.is_cast and name not in following}
    wrong = pd.Series([key in made for key in zip(verdicts["tensor"], verdicts["dtype"], strict=True)], verdicts.index)
    wrong &= ~is_healthy(verdicts) | _proven_here(verdicts, proven, results)
    verdicts = verdicts.assign(label=verdicts["label"].mask(verdicts["label"].isin(DOUBTFUL) & wrong, LOGIC))
    return _as_the_forward(verdicts, following) if following else verdicts


def _proven_here(verdicts: pd.DataFrame, proven: dict[str, Cause], results: pd.DataFrame) -> "pd.Series[bool]":
    """Which verdicts are of a tensor, a problem, a dtype and a number of ranks of which a case proves a cause."""
    cases = results.drop_duplicates("case_id")
    of_case = dict(zip(cases["case_id"], _cells(cases), strict=True))
    cells = {(name, of_case[case]) for name, each in proven.items() for case in each.cases}
    found = [cell in cells for cell in zip(verdicts["tensor"], _cells(verdicts), strict=True)]
    return pd.Series(found, verdicts.index, dtype=bool)


def _cells(table: pd.DataFrame) -> list[tuple[object, ...]]:
    columns = table[list(CASE)].astype(object)
    return list(columns.where(columns.notna(), None).itertuples(index=False, name=None))


def _as_casts(verdicts: pd.DataFrame, casts: dict[str, Cause]) -> pd.DataFrame:
    """A tensor that a cast is proven for is only as good as its format, on whatever ranks and elements it strikes, and
    merely rounds in a dtype no finer; but for errors that no sum of such roundings makes, and for other rules' bugs."""
    verdicts = verdicts.copy()
    for tensor, cause in casts.items():
        form = next((FORMATS[word] for word in cause.clauses[0].split() if word in FORMATS), None)
        if form is None:
            continue
        names = (tensor, "delta") if tensor == "out" else (tensor,)
        floor = (verdicts["label"] == PRECISION_FLOOR) & ~is_healthy(verdicts)
        cast = verdicts["tensor"].isin(names) & verdicts["rule"].isin(BY_SIZE) & (floor | (verdicts["label"] == LOGIC))
        cast &= verdicts["error_rel"] <= WITHIN_EXACT * LEVEL * form.unit_roundoff
        finer = verdicts["dtype"].isin([each.name for each in FORMATS.values() if each.precision > form.precision])
        verdicts["label"] = verdicts["label"].mask(cast, ROUNDING).mask(cast & finer, PRECISION_FLOOR)
        floors = [{**numbers, "floor": form.name} for numbers in verdicts.loc[cast & finer, "numbers"]]
        verdicts.loc[cast & finer, "numbers"] = pd.Series(floors, verdicts.index[cast & finer], dtype=object)
    return verdicts


def _as_kept_sums(verdicts: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """In 16 bits, tensors that are no farther off than a sum over keys which lse shows to be kept in the case's format.
    What is divided by a sum is off by exp(lse's error) - 1 of itself: of equal weights, as probes have them, which stop
    a sum at 256, more than of others. Where dP and delta are D each, it is sqrt(D) times
    that of a Gaussian gradient."""
    verdicts = verdicts.copy()
    lse = results[(results["tensor"] == "lse") & (results["rank"] == ALL_RANKS) & results["error_rms"].notna()]
    sizes = []
    for rows in (lse[~lse["inputs"].isin(list(PROBES))], lse):
        off = pd.Series(rows["error_rms"].to_numpy("float64"), _cells(rows)).groupby(level=0).max()
        sizes.append(pd.Series([off.get(cell, 0.0) for cell in _cells(verdicts)], verdicts.index))
    probe = verdicts["rule"] == "probe"
    size = sizes[0].mask(probe, sizes[1] * np.sqrt(verdicts["head_dim"].astype(float)))
    told = [abs(float(x.get("gain", x.get("probe", x.get("error_rel", math.inf))))) for x in verdicts["numbers"]]
    short = verdicts["dtype"].map(lambda name: DTYPES[name].bytes) == 2
    kept = short & verdicts["rule"].isin((*BY_SIZE, "factor", "probe", "biased")) & (verdicts["label"] != ROUNDING)
    off_by = verdicts["error_rel"].mask(probe | (verdicts["rule"] == "factor"), pd.Series(told, verdicts.index))
    kept &= (verdicts["tensor"] == "lse") | (off_by <= WITHIN * np.expm1(size))
    numbers = [{"error_rel": off, MARK: SUM_OF_KEYS} for off in off_by[kept].fillna(0.0)]
    verdicts.loc[kept, "numbers"] = pd.Series(numbers, verdicts.index[kept], dtype=object)
    return verdicts.assign(label=verdicts["label"].mask(kept, ROUNDING))


def _as_the_forward(verdicts: pd.DataFrame, following: set[str]) -> pd.DataFrame:
    """Those tensors with the label of out or lse in their case: a bug where that is one; where it is none, no bug of
    their own, unless the error is more than `WITHIN` times as large."""
    changed = verdicts.copy()
    for _, case in verdicts.groupby(list(CASE), dropna=False, sort=False):
        forward = case[case["tensor"].isin(FORWARD)]
        if forward.empty:
            continue
        worst = forward.iloc[int(forward["label"].map(LABELS.index).argmin())]
        for index, row in case[case["tensor"].isin(following)].iterrows():
            small = row["error_rel"] <= WITHIN * forward["error_rel"].max()
            if worst["label"] in BUGS and row["label"] in DOUBTFUL:
                changed.at[index, "label"] = LOGIC
            elif worst["label"] not in BUGS and row["label"] == LOGIC and small:
                for column in ("label", "finding", "sentence", "numbers"):
                    changed.at[index, column] = worst[column]
    return changed
