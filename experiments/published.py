"""Published tables, and their numbers as text, for the `tables.py` of experiments (see blocks.py)."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from accuracy.report.folder import read_folder
from experiments.claim import judge, over_ranks
from experiments.depth import table as depth

TENSORS = ["out", "dq", "dk", "dv"]


class Tables:
    """Published tables, by their path from reports/."""

    def __init__(self, reports: Path):
        self.reports = reports
        self.rows = cache(self._rows)  # of a run, `te_growth/nvidia-h200`
        self.csv = cache(lambda name: pd.read_csv(reports / name))  # of a script, `remedies/bytes.csv`

    def _rows(self, name: str) -> pd.DataFrame:
        folder = self.reports / name
        return depth.read(folder) if (folder / depth.FILE).exists() else read_folder(folder).results

    def of(self, experiment: str) -> list[pd.DataFrame]:
        """The tables of all runs of an experiment."""
        folders = sorted({path.parent.name for path in (self.reports / experiment).glob("*/*.parquet")})
        return [self.rows(f"{experiment}/{name}") for name in folders]

    def worst_rank(self, name: str, keys: Sequence[str], **where: object) -> "pd.Series[float]":
        """Error over single device's on the worst rank of out, dq, dk and dv, mean over seeds, indexed by `keys`."""
        return self.worst_ranks(name, keys, **where)["x_single_device"]

    def worst_ranks(self, name: str, keys: Sequence[str], **where: object) -> pd.DataFrame:
        """As `worst_rank`, with `half`, half of its 95% interval over seeds."""
        rows = chosen(self.rows(name), tensor=TENSORS, **where)
        return over_ranks(rows, "max", keys).set_index([*keys]).sort_index()

    def claims(self, name: str) -> str:
        """A list item for each claim of a table's experiment that the table can judge, with the numbers for it."""
        found = judge(name.split("/")[0], self.rows(name))
        return "\n".join(f"- {each.line}" for each in found if each.holds is not None)

    def numbers(self, name: str, pattern: str) -> tuple[float, ...]:
        """Numbers in the groups of the first match of `pattern` in a published text, `selfcheck/rates.txt`."""
        found = re.search(pattern, (self.reports / name).read_text())
        if found is None:
            raise LookupError(f"{name}: has no {pattern!r}")
        return tuple(float(group.replace(",", "")) for group in found.groups())


def chosen(rows: pd.DataFrame, **where: object) -> pd.DataFrame:
    """The rows whose columns have these values, each one value or a list of them."""
    for column, value in where.items():
        rows = rows[rows[column].isin(value if isinstance(value, list | tuple) else [value])]
    return rows


def markdown(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; numbers come as text."""
    first, *rest = ["|" + "".join(f" {cell} |" if cell != "" else " |" for cell in row) for row in (head, *rows)]
    return "\n".join((first, "|" + "---|" * (first.count("|") - 1), *rest))


def cells(numbers: "pd.Series[float]", columns: Iterable[object], spec: str = ".2f") -> list[str]:
    """A row's numbers at its columns, empty where it has none."""
    return [format(numbers[each], spec) if each in numbers.index else "" for each in columns]


def joined(numbers: Iterable[float], spec: str = ".2f") -> str:
    """`1.23, 1.25`."""
    return ", ".join(format(number, spec) for number in numbers)


def span(numbers: Iterable[float], spec: str = ".2f") -> str:
    """`1.23 to 1.26`, from the least to the largest; one number where both are printed alike."""
    numbers = list(numbers)
    ends = dict.fromkeys((format(min(numbers), spec), format(max(numbers), spec)))
    return " to ".join(ends)
