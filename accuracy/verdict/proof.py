"""Which cause is proven? From the rows of `hypotheses/`: the one that leaves nothing but rounding where no other does.

Proven: the best hypothesis leaves at most 1.5 times the expected rounding, and every rival at least 10 times. A rival
is one whose prediction is another one; hypotheses with the same prediction are one cause, and of those with as few
fitted numbers all are named. Judged in the finest dtype that has rows: the cause that most of its cases prove, since
at few ranks and tokens several causes predict the same: with 5 ranks and a scale of 0.2 a mean over ranks is the scale
once more. Where cases with as many hypotheses do not prove it, too, the clause says which ones do.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pandas as pd

from accuracy.core.dtype import DTYPES
from accuracy.results.hypothesis import EXPLAINS, FOLLOWS, RULED_OUT, SAME

CAST = "cast of "
FORWARD = ("out", "lse")
BOTH = "out and lse are "
SHAPE = ("world_size", "heads_kv", "heads", "batch", "head_dim", "mask", "seqlen")
"""What one case may have and another has not, what causes hang on most often first."""


@dataclass(frozen=True)
class Cause:
    """What a tensor's error was reconstructed from, or the nearest idea.

    families, alike: of all hypotheses that predict the same, alike their names; names, clauses: of those with the
    fewest fitted numbers, the first one's first; leaves, rival: what they and the best rival leave, in times the
    expected rounding; tried: how many hypotheses; where: which cases prove it, in words.
    """

    tensor: str
    families: tuple[str, ...]
    names: tuple[str, ...]
    clauses: tuple[str, ...]
    leaves: float
    rival: float
    tried: int
    dtype: str
    world_size: int
    case: str = ""
    alike: frozenset[str] = frozenset()
    where: str = ""

    @property
    def proven(self) -> bool:
        """Whether it explains everything and no rival does."""
        return self.leaves <= EXPLAINS and self.rival >= RULED_OUT

    @property
    def is_cast(self) -> bool:
        """Whether a coarser format is the cause."""
        return self.names[0].startswith(CAST)

    @property
    def text(self) -> str:
        """The clause, those that cannot be told from it, and which of the cases prove it, where not all do."""
        return " or, which is the same here, ".join(list(dict.fromkeys(self.clauses))[:3]) + self.where


def causes(hypotheses: pd.DataFrame, results: pd.DataFrame) -> dict[str, Cause]:
    """By tensor, of one variant."""
    if hypotheses.empty:
        return {}
    about = results.drop_duplicates("case_id").set_index("case_id")[["dtype", "inputs", *SHAPE]]
    rows = hypotheses[hypotheses["case_id"].isin(about.index)].join(about, on="case_id")
    tensors = rows.groupby("case_id")["tensor"].agg(set)
    alone = ~rows["case_id"].map(tensors.map({*FORWARD}.issubset)).astype(bool)
    rows = rows[~(alone & rows["cause"].str.startswith(BOTH))]  # only one of the two is wrong
    return {str(tensor): _of_tensor(str(tensor), mine) for tensor, mine in rows.groupby("tensor", sort=False)}


def _of_tensor(tensor: str, rows: pd.DataFrame) -> Cause:
    """Gaussian inputs before others, the finest dtype before others, then what most cases prove, of several problems
    and sizes, at the largest world size."""
    cases = [_of_case(tensor, case) for _, case in rows.groupby("case_id", sort=False)]
    simple = set(rows.loc[rows["inputs"] == "gaussian", "case_id"])
    if simple and len(simple) < rows["case_id"].nunique():
        return _of_tensor(tensor, rows[rows["case_id"].isin(simple)])
    finest = max(DTYPES[each.dtype].precision for each in cases)
    mine = [each for each in cases if DTYPES[each.dtype].precision == finest]
    votes = Counter(name for each in mine if each.proven for name in each.alike)
    tried = max((each.tried for each in mine if each.proven), default=0)  # few on large problems: the simplest may lack

    def telling(each: Cause) -> tuple[bool, bool, int, int]:
        return each.proven, 2 * each.tried >= tried, max(votes[name] for name in each.names), each.world_size

    best = max(mine, key=telling)
    if not best.proven:
        return best
    said = Counter(clause for each in mine if each.proven for clause in {*each.clauses})
    most = max(votes[name] for name in best.names)
    told = [(name, clause) for name, clause in zip(best.names, best.clauses, strict=True) if votes[name] == most]
    often = {name: max(said[clause] for other, clause in told if other == name) for name, _ in told}
    names, clauses = zip(*(each for each in told if said[each[1]] == often[each[0]]), strict=True)
    return replace(best, names=names, clauses=clauses, where=_where(best, {*names}, mine, rows))


def _where(best: Cause, names: set[str], mine: list[Cause], rows: pd.DataFrame) -> str:
    """Which cases prove a cause, and which have an error that it does not make; nothing where all prove it. Cases on
    which fewer than half as many hypotheses were tried, as on large problems, tell nothing."""
    proven = {each.case for each in mine if each.proven and names & each.alike}
    about = rows.drop_duplicates("case_id").set_index("case_id")
    padded = {*about.index[about["mask"].str.contains("padding") & (about["world_size"] > 1)]}  # of no rank: not asked
    asked = [each for each in mine if 2 * each.tried >= best.tried and (each.proven or each.leaves >= RULED_OUT)]
    others = {each.case for each in asked} - proven - padded
    if not others:
        return ""
    for name in SHAPE:
        here, there = ({*about.loc[[*cases], name]} for cases in (proven, others))
        if not here & there:
            values = (", ".join(map(str, sorted(each))) for each in (here, there))
            return f" (proven with {name}={next(values)}, not with {next(values)})"
    return f" (proven in {len(proven)} of {len(proven) + len(others)} cases)"


def _of_case(tensor: str, rows: pd.DataFrame) -> Cause:
    """Rows come best first."""
    best = rows.iloc[0]
    same = rows["from_best"] <= SAME * rows["expected"]
    ties = rows[same & (rows["freedom"] == best["freedom"])].drop_duplicates(["hypothesis", "parameter"])
    finer = (rows["hypothesis"] == best["hypothesis"]) & (rows["freedom"] > best["freedom"])  # the same idea, fitted
    rivals = rows[~same & ~finer]
    rival = float((rivals["residual"] / rivals["expected"]).min()) if len(rivals) else float("inf")
    return Cause(
        tensor=tensor,
        families=tuple(dict.fromkeys(rows.loc[same, "family"])),
        names=tuple(ties["hypothesis"]),
        clauses=tuple(ties["cause"]),
        leaves=float(best["residual"] / best["expected"]),
        rival=rival,
        tried=int(best["tried"]),
        dtype=str(best["dtype"]),
        world_size=int(best["world_size"]),
        case=str(best["case_id"]),
        alike=frozenset(rows.loc[same, "hypothesis"]),
    )


def followers(lead: Iterable[Cause], others: Iterable[Cause]) -> list[str]:
    """The tensors whose error is made of the leading ones' or has the same cause."""
    names = {name for each in lead for name in each.names}
    same = names | {f"{name} (backward)" for name in names} | {FOLLOWS}
    return [each.tensor for each in others if each.proven and same & set(each.names)]
