"""Which table says each number that a document prints? `python -m accuracy.report.evidence REPOSITORY [--write]`.

In: documents, the published tables, and the `quoted.py` of experiments. Each holds
`def quoted(tables: Tables) -> dict[str, list[Said]]`: passages of documents, by their path from its folder, with the
numbers that tables have for them. Out: a line for each passage that the tables do not bear out, and for each measured
number of a document that no passage has. --write puts the tables' numbers into the documents first, as after new runs.
"""

import re
import runpy
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from string import Formatter
from typing import Any

import pandas as pd

from accuracy.report.folder import read_folder
from accuracy.results.claim import Claim, judge, judge_answer
from accuracy.results.over_ranks import over_ranks

NAME, TENSORS = "quoted.py", ("out", "dq", "dk", "dv")
FIELD, NEVER = re.compile(r"\{[^{}]*\}"), re.compile(r"(?!)")
NUMBER = re.compile(r"(?<![\w.^#/-])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?![\w^])")
WHOLE = r"\d+(?:[.,]\d+)*"
LIST = rf"{WHOLE}(?:(?:,|\s+to|\s+and|\s+or|,? \.\.\.,?)\s+{WHOLE})*"
CHOSEN = (  # what a number of is a setting
    r"(?:ranks?|GPUs?|H100s?|H200s?|cores?|tokens?|keys?|queries|heads?|seeds?|layers?|parts?|bits?|bytes?|steps?|"
    r"dimensions?|documents?|processes|threads|positions|hops?)"
)
UNMEASURED = tuple(
    re.compile(each, re.DOTALL | re.MULTILINE)
    for each in (  # what prints a digit that nobody measured, taken out in this order
        r"^## (?:Question|Prediction)s?$.*?(?=^## |\Z)",
        r"```.*?```",
        r"^ {4,}(?:accuracy|make|pip|python|torchrun|srun)[^\n]*$",
        r"`(?:[^`\n]|\n(?!\n))*`",
        r"^\[[^\]]+\]: [^\n]*$",
        r"\]\([^)]*\)",
        r"https?://\S+",
        r"<!-- columns.*?<!-- end of columns -->",
        r"<!--.*?-->",
        r"^ *\|[^\n]*\n(?= *\|[-|: ]+\|$)",  # heads of tables
        r"\d{4}-\d\d-\d\d",
        r"arXiv:? ?\d{4}\.\d{4,5}",
        r"\b\d+-bit\b",
        r"^ *\d+\. ",
        r"\d+\.\d+\.\d+\S*",  # versions
        r"\b(?:torch|Triton|Python|CUDA|cuDNN|flash-attn|FlashAttention|JAX|transformers|NCCL|MKL)\s+\d[\d.]*",
        rf"\b(?:lines?|Table|Figure|section|layers?|ranks?|seeds?|steps?|head|Predictions?|size)\s+{LIST}",
        rf"\bhead(?:s| dim) of {LIST}",
        rf"\b[A-Za-z_]+ ?= ?{LIST}",  # W = 2, 4
        rf"{LIST}\s+(?:\w+\s+)?{CHOSEN}\b",
    )
)


@dataclass(frozen=True)
class Said:
    """A passage that a document prints, white space aside.

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
        return self.text.format(*self.values)

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

    def worst_rank(self, name: str, world_size: int, kernel: str = "flash_attn") -> "pd.Series[float]":
        """By variant, as published, in bfloat16: error over single device's on the worst rank, worst of the tensors."""
        rows = self.rows(name)
        rows = rows[rows["tensor"].isin(TENSORS) & (rows["kernel"] == kernel) & (rows["dtype"] == "bfloat16")]
        rows = rows[(rows["world_size"] == world_size) & (rows["precision"] == "")]
        return over_ranks(rows, "max").groupby("variant")["x_single_device"].max()

    @lru_cache(maxsize=64)  # noqa: B019
    def claims(self, name: str) -> list[Claim]:
        """The claims of a table's experiment and what its Answer is made of, judged on the table."""
        experiment, rows = name.split("/")[0], self.rows(name)
        return [*judge(experiment, rows), *judge_answer(experiment, rows)]

    def claimed(self, name: str, statement: str, pattern: str) -> tuple[float, ...]:
        """Numbers in the groups of `pattern` in the evidence for the claim that begins with `statement`."""
        claim = next(each for each in self.claims(name) if each.statement.startswith(statement))
        return _numbers(re.search(pattern, claim.evidence), f"{name}: {claim.evidence!r} has no {pattern!r}")

    def held(self, name: str) -> list[bool]:
        """Which of the claims of a table hold, of those that it can judge."""
        return [each.holds for each in judge(name.split("/")[0], self.rows(name)) if each.holds is not None]

    def text(self, name: str, pattern: str) -> tuple[float, ...]:
        """Numbers in the groups of the only match of `pattern` in a published text, `selfcheck/rates.txt`."""
        return _numbers(re.search(pattern, (self.reports / name).read_text()), f"{name}: has no {pattern!r}")


def complaints(document: str, said: Iterable[Said]) -> Iterator[str]:
    """A line for each passage that tables or document do not bear out, then for each number that no passage has."""
    open_ = _measured_only(document)
    for each, place in _places(document, said):
        if place is None:
            yield f"no such passage: {each.text}"
            continue
        line, found = _line(document, place.start()), " ".join(place.group().split())
        if found != " ".join(each.printed.split()):
            yield f"line {line} prints: {found}; the tables say: {each.printed}"
        elif not each.holds:
            yield f"line {line} prints: {found}; the tables do not bear it out"
        open_ = _without(open_, place)
    for number in NUMBER.finditer(open_):
        yield f"line {_line(document, number.start())}: no table is named for {number.group()}"


def with_numbers(document: str, said: Iterable[Said]) -> str:
    """The document with the tables' numbers in its passages; its lines stay as they are."""
    edits: list[tuple[tuple[int, int], str]] = []
    for each, place in _places(document, said):
        if place and place.re.groups:
            edits += zip(place.regs[1:], map(format, each.values, each.formats), strict=True)
    for (start, end), number in sorted(edits, reverse=True):
        document = document[:start] + number + document[end:]
    return document


def check(repository: Path, write: bool = False) -> Iterator[str]:
    """The complaints about every document that a quoted.py names. write: after the tables' numbers are in it."""
    tables = Tables(repository / "reports")
    passages: dict[Path, list[Said]] = {}
    for file in sorted(repository.glob(f"experiments/**/{NAME}")):
        for document, said in runpy.run_path(str(file))["quoted"](tables).items():
            passages.setdefault((file.parent / document).resolve(), []).extend(said)
    for path, said in passages.items():
        if write:
            path.write_text(with_numbers(path.read_text(), said))
        for each in complaints(path.read_text(), said):
            yield f"{path.relative_to(repository.resolve())}: {each}"


def main(words: list[str]) -> int:
    """0: every number is borne out; 1: not, a line for each."""
    found = list(check(Path(words[0]), write="--write" in words[1:]))
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(found)} numbers or passages are not borne out by the published tables")
    return int(bool(found))


def _places(document: str, said: Iterable[Said]) -> list[tuple[Said, re.Match[str] | None]]:
    """Where each passage is, no two in one place: with the tables' numbers, else with others, in `said`'s order."""
    said = list(said)
    found: dict[int, re.Match[str]] = {}
    for patterns in ([_pattern(each.printed, NEVER) for each in said], [_pattern(each.text, FIELD) for each in said]):
        for index, pattern in enumerate(patterns):
            if index not in found and (place := pattern.search(document)):
                found[index], document = place, _without(document, place)
    return [(each, found.get(index)) for index, each in enumerate(said)]


def _numbers(found: re.Match[str] | None, complaint: str) -> tuple[float, ...]:
    if found is None:
        raise LookupError(complaint)
    return tuple(float(group.replace(",", "")) for group in found.groups())


def _measured_only(document: str) -> str:
    for pattern in UNMEASURED:
        for place in pattern.finditer(document):
            document = _without(document, place)
    return document


def _pattern(text: str, any_number: re.Pattern[str]) -> re.Pattern[str]:
    """Finds a text, white space aside, with anything in place of the fields."""
    words = (r"(\S+?)".join(map(re.escape, any_number.split(word))) for word in text.split())
    return re.compile(r"\s+".join(words))


def _without(document: str, place: re.Match[str]) -> str:
    blank = re.sub(r"\S", " ", document[place.start() : place.end()])
    return document[: place.start()] + blank + document[place.end() :]


def _line(document: str, place: int) -> int:
    return document.count("\n", 0, place) + 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
