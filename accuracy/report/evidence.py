"""Which table says each number that a document prints? `python -m accuracy.report.evidence REPOSITORY [--write]`.

In: documents, the published tables, and the `quoted.py` of experiments. Each holds
`def quoted(tables: Tables) -> dict[str, list[Said]]`: passages of documents, by their path from its folder, with the
numbers that tables have for them. Out: a line for each passage that the tables do not bear out, and for each measured
number of a document that no passage has. --write puts the tables' numbers into the documents first, as after new runs.
"""

import json
import re
import runpy
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from string import Formatter
from typing import Any

import pandas as pd

from accuracy.report.folder import read_folder
from accuracy.report.measured import (
    COMMAND,
    HEADS_OF_TABLES,
    NUMBER,
    UNPUBLISHED,
    measured_only,
    published_only,
    unpublished,
    without,
)
from accuracy.results.claim import Claim, judge, judge_answer
from accuracy.results.over_ranks import over_ranks
from accuracy.results.table import ALL_RANKS

NAME, TENSORS = "quoted.py", ("out", "dq", "dk", "dv")
CELL = r"([^|\n]*?)"
FIELD, NEVER = re.compile(r"\{[^{}]*\}"), re.compile(r"(?!)")


class _Short(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        """1e-7, where Python has 1e-07."""
        text: str = super().format_field(value, format_spec)
        return text.replace("e-0", "e-").replace("e+0", "e")


@dataclass(frozen=True)
class Said:
    """A passage that a document prints, white space and bold aside.

    text: with a format field for each measured number, `{:.2f} times`. values: what tables say, one for each field.
    holds: whether tables bear out what the text says of numbers that it does not print (`below 1.5 times`).
    source: where numbers are from that no table has: of others, or of a command's output; they are not recomputed.
    """

    text: str
    values: tuple[Any, ...] = ()
    holds: bool = True
    source: str = ""

    @property
    def printed(self) -> str:
        """The text with the tables' numbers."""
        return _Short().format(self.text, *self.values)

    @property
    def formats(self) -> list[str]:
        """Of each field, `.2f`."""
        return [spec or "" for _, name, spec, _ in Formatter().parse(self.text) if name is not None]


class Tables:
    """Published tables by name, `te_growth/nvidia-h200`."""

    def __init__(self, reports: Path):
        self.reports = reports

    @lru_cache(maxsize=4)  # noqa: B019  as long as the one object of a check
    def rows(self, name: str) -> pd.DataFrame:
        """All rows of a table."""
        return read_folder(self.reports / name).rows

    def cases(self, name: str) -> "pd.Series[int]":
        """How many cases of a table are ok, unsupported and failed."""
        cases = self.rows(name).drop_duplicates("case_id")["status"].value_counts()
        return cases.reindex(["ok", "unsupported", "failed"], fill_value=0)

    def seconds(self, name: str) -> float:
        """From a run's start to its end."""
        run = json.loads((self.reports / name / "run.json").read_text())
        return float((pd.Timestamp(run["ended"]) - pd.Timestamp(run["started"])).total_seconds())

    def whole(self, name: str) -> pd.DataFrame:
        """The rows with numbers of all ranks together."""
        rows = self.rows(name)
        return rows[(rows["rank"] == ALL_RANKS) & rows["tensor"].notna() & (rows["status"] == "ok")]

    def worst_rank(self, name: str, world_size: int, kernel: str = "flash_attn") -> "pd.Series[float]":
        """By variant, as published, in bfloat16: error over single device's on the worst rank, worst of the tensors."""
        rows = self.rows(name)
        rows = rows[rows["tensor"].isin(TENSORS) & (rows["kernel"] == kernel) & (rows["dtype"] == "bfloat16")]
        rows = rows[(rows["world_size"] == world_size) & (rows["precision"] == "")]
        return over_ranks(rows, "max").groupby("variant")["x_single_device"].max()

    @lru_cache(maxsize=64)  # noqa: B019
    def judged(self, name: str) -> list[Claim]:
        """The claims of a table's experiment, judged on the table."""
        return judge(name.split("/")[0], self.rows(name))

    @lru_cache(maxsize=64)  # noqa: B019
    def answered(self, name: str) -> list[Claim]:
        """What the Answer of a table's experiment is made of, judged on the table."""
        return judge_answer(name.split("/")[0], self.rows(name))

    def claimed(self, name: str, statement: str, pattern: str) -> tuple[float, ...]:
        """Numbers in the groups of `pattern` in the evidence for the claim that begins with `statement`, of the
        experiment or else of its Answer."""
        starts = (
            each for of in (self.judged, self.answered) for each in of(name) if each.statement.startswith(statement)
        )
        claim = next(starts, Claim(statement, None, "no such claim"))
        return _numbers(re.search(pattern, claim.evidence), f"{name}: {claim.evidence!r} has no {pattern!r}")

    def held(self, name: str) -> list[bool]:
        """Which of the claims of a table hold, of those that it can judge."""
        return [each.holds for each in self.judged(name) if each.holds is not None]

    def answer(self, name: str) -> list[bool]:
        """Whether the table bears out each claim that the experiment's Answer is made of."""
        return [bool(each.holds) for each in self.answered(name)]

    def text(self, name: str, pattern: str) -> tuple[float, ...]:
        """Numbers in the groups of the only match of `pattern` in a published text, `selfcheck/rates.txt`."""
        return _numbers(re.search(pattern, (self.reports / name).read_text()), f"{name}: has no {pattern!r}")


def significant(number: float, digits: int = 2) -> str:
    """A number to so many significant digits, without exponent: 160,000 or 0.53."""
    decimals = digits - 1 - int(f"{number:e}".split("e")[1])
    return f"{round(number, decimals):,.{max(decimals, 0)}f}"


def lines(rows: Mapping[str, Iterable[Any]], *specs: str) -> list[Said]:
    """Lines of a Markdown table: by what each begins with, the numbers behind it, each in its column's format spec, in
    the last one from there on. A text instead of a number is printed as it is."""
    return [_table_line(head, list(cells), specs or (".2f",)) for head, cells in rows.items()]


def complaints(document: str, said: Iterable[Said]) -> Iterator[str]:
    """A line for each passage that tables or document do not bear out, then for each number that no passage has, and
    for each paragraph that says that its run is unpublished, and not how to run it."""
    open_ = published_only(document)
    for each, place in _places(document, said):
        if place is None:
            yield f"no such passage: {each.text}"
            continue
        line, found = _line(document, place.start()), _plain(place.group())
        if found != _plain(each.printed):
            yield f"line {line} prints: {found}; the tables say: {_plain(each.printed)}"
        elif not each.holds:
            yield f"line {line} prints: {found}; the tables do not bear it out"
        open_ = without(open_, place)
    for place in unpublished(document):
        if UNPUBLISHED.search(place.group()) and not COMMAND.search(place.group()):
            yield f"line {_line(document, place.start())}: unpublished, and no command is beside it"
    for number in NUMBER.finditer(open_):
        yield f"line {_line(document, number.start())}: no table is named for {number.group()}"


def of_unpublished_runs(document: str) -> int:
    """How many numbers of a document are of runs that are not published."""
    measured = measured_only(document)
    return sum(len(NUMBER.findall(measured, *place.span())) for place in unpublished(document))


def with_numbers(document: str, said: Iterable[Said]) -> str:
    """The document with the tables' numbers in its passages; its lines stay as they are."""
    edits: list[tuple[tuple[int, int], str]] = []
    for each, place in _places(document, said):
        if place and place.re.groups:
            edits += zip(place.regs[1:], map(_Short().format_field, each.values, each.formats), strict=True)
    for (start, end), number in sorted(edits, reverse=True):
        document = document[:start] + number + document[end:]
    return document


def passages_of(repository: Path) -> dict[Path, list[Said]]:
    """The passages of every experiment's README and of every document that a quoted.py names, by its path."""
    tables = Tables(repository / "reports")
    passages: dict[Path, list[Said]] = {}
    for file in sorted(repository.glob(f"experiments/**/{NAME}")):
        for document, said in runpy.run_path(str(file))["quoted"](tables).items():
            passages.setdefault((file.parent / document).resolve(), []).extend(said)
    for readme in sorted(repository.glob("experiments/*/README.md")):
        passages.setdefault(readme.resolve(), [])
    return passages


def states(reports: Path) -> str:
    """Of how many states of the code the published runs are: `01ddac7b0a2b 5, f423ecf975e1 3`."""
    codes = [json.loads(path.read_text())["fingerprint"]["code"] for path in reports.glob("*/*/run.json")]
    return ", ".join(f"{code} {times}" for code, times in Counter(codes).most_common())


def main(words: list[str]) -> int:
    """0: every number is borne out; 1: not, a line for each. --write: after the tables' numbers are in."""
    repository = Path(words[0]).resolve()
    found, open_, others = [], {}, 0
    for path, said in passages_of(repository).items():
        if "--write" in words[1:]:
            path.write_text(with_numbers(path.read_text(), said))
        name, text = str(path.relative_to(repository)), path.read_text()
        found += [f"{name}: {each}" for each in complaints(text, said)]
        open_[name] = of_unpublished_runs(text)
        others += sum(len(NUMBER.findall(measured_only(FIELD.sub("", each.text)))) for each in said if each.source)
    print(*found, sep="\n", end="\n" if found else "")
    print(*(f"{name}: {count} numbers are of unpublished runs" for name, count in open_.items() if count), sep="\n")
    print(f"{others} numbers have another source than a table: others, tests, rules")
    print("published runs by the digest of the code that measured them:", states(repository / "reports"))
    print(f"{len(found)} numbers or passages are not borne out by the published tables, of {len(open_)} documents")
    return int(bool(found))


def _places(document: str, said: Iterable[Said]) -> list[tuple[Said, re.Match[str] | None]]:
    """Where each passage is, no two in one place: with the tables' numbers, else with others, in `said`'s order."""
    said, document = list(said), document.replace("**", "  ")
    for block in unpublished(document):
        document = without(document, block)
    heads = [place.span() for place in HEADS_OF_TABLES.finditer(document)]
    found: dict[int, re.Match[str]] = {}
    for patterns in ([_pattern(each.printed, NEVER) for each in said], [_pattern(each.text, FIELD) for each in said]):
        for index, pattern in enumerate(patterns):
            if index not in found and (place := _outside(heads if pattern.groups else [], pattern, document)):
                found[index], document = place, without(document, place)
    return [(each, found.get(index)) for index, each in enumerate(said)]


def _outside(spans: list[tuple[int, int]], pattern: re.Pattern[str], document: str) -> re.Match[str] | None:
    """The first match that begins in none of the spans: heads of tables hold no measured numbers."""
    matches = pattern.finditer(document)
    return next((place for place in matches if not any(a <= place.start() < b for a, b in spans)), None)


def _numbers(found: re.Match[str] | None, complaint: str) -> tuple[float, ...]:
    if found is None:
        raise LookupError(complaint)
    return tuple(float(group.replace(",", "")) for group in found.groups())


def _pattern(text: str, any_number: re.Pattern[str]) -> re.Pattern[str]:
    """Finds a text, white space aside, with anything in place of the fields."""
    words = (
        CELL if word == "{}" and any_number is FIELD else r"(\S+?)".join(map(re.escape, any_number.split(word)))
        for word in _plain(text).split()
    )
    pattern = r"\s+".join(words).replace(rf"\s+{CELL}\s+", rf"\s*{CELL}\s*")
    return re.compile(pattern + r"(?![\w%]|[.-]\d)")


def _plain(text: str) -> str:
    """Without bold, and with one space for white space."""
    return " ".join(text.replace("**", "  ").split())


def _table_line(head: str, cells: list[Any], specs: tuple[str, ...]) -> Said:
    fields = [
        "{}" if isinstance(each, str) else f"{{:{specs[min(at, len(specs) - 1)]}}}" for at, each in enumerate(cells)
    ]
    return Said(f"| {head} | {' | '.join(fields)} |", tuple(cells))


def _line(document: str, place: int) -> int:
    return document.count("\n", 0, place) + 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
