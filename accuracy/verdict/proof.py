"""Which cause is proven? From the rows of `hypotheses/`: the one that leaves nothing but rounding where no other does.

Proven: the best hypothesis leaves at most 1.5 times the expected rounding, and every rival at least 10 times. A rival
is one whose prediction is another one; hypotheses with the same prediction are one cause, and of those with as few
fitted numbers all are named. Judged in the finest dtype that has rows: the cause that most of its cases prove, since
at few ranks and tokens several causes predict the same.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pandas as pd

from accuracy.core.dtype import DTYPES
from accuracy.results.hypothesis import EXPLAINS, FOLLOWS, RULED_OUT, SAME

CAST = "cast of "


@dataclass(frozen=True)
class Cause:
    """What a tensor's error was reconstructed from, or the nearest idea.

    families: of all hypotheses that predict the same; names, clauses: of those with the fewest fitted numbers, the
    first one's first; leaves, rival: what they and the best rival leave, in times the expected rounding; tried: how
    many hypotheses.
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
        """The clause, and those that cannot be told from it."""
        return " or, which is the same here, ".join(list(dict.fromkeys(self.clauses))[:3])


def causes(hypotheses: pd.DataFrame, results: pd.DataFrame) -> dict[str, Cause]:
    """By tensor, of one variant."""
    if hypotheses.empty:
        return {}
    about = results.drop_duplicates("case_id").set_index("case_id")[["dtype", "world_size", "inputs"]]
    rows = hypotheses[hypotheses["case_id"].isin(about.index)].join(about, on="case_id")
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
    votes = Counter(name for each in mine if each.proven for name in each.names)
    best = max(mine, key=lambda each: (each.proven, max(votes[name] for name in each.names), each.world_size))
    if not best.proven:
        return best
    most = max(votes[name] for name in best.names)
    kept = {name for name in best.names if votes[name] == most}
    clauses = [clause for name, clause in zip(best.names, best.clauses, strict=True) if name in kept]
    names = [name for name in best.names if name in kept]
    return replace(best, names=tuple(names), clauses=tuple(clauses))


def _of_case(tensor: str, rows: pd.DataFrame) -> Cause:
    """Rows come best first."""
    best = rows.iloc[0]
    same = rows["from_best"] <= SAME * rows["expected"]
    ties = rows[same & (rows["freedom"] == best["freedom"])].drop_duplicates("hypothesis")
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
    )


def followers(lead: Iterable[Cause], others: Iterable[Cause]) -> list[str]:
    """The tensors whose error is made of the leading ones' or has the same cause."""
    names = {name for each in lead for name in each.names}
    same = names | {f"{name} (backward)" for name in names} | {FOLLOWS}
    return [each.tensor for each in others if each.proven and same & set(each.names)]
