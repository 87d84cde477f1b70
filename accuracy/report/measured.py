"""Which numbers of a document are measured? Its text without settings, predictions, versions and code.

In: a Markdown document. Out: the same text, with blanks for whatever prints a digit that nobody measured and for the
numbers of runs that are not published: those of a paragraph or list item that says `unpublished` and, in backticks, the
command that measures them (or `the same unpublished run`), of the table or list behind it where it ends with
a colon, and of the whole section where it says `this section`.
"""

import re
from collections.abc import Callable

from accuracy.core.public import ADDRESS

WHOLE = r"\d+(?:[.,]\d+)*"
LIST = rf"{WHOLE}(?:(?:,|\s+to|\s+and|\s+or|,? \.\.\.,?)\s+{WHOLE})*"
INTEGER = r"(?<![\d.])\d+(?:,\d{3})*(?![\d%]|[.,]\d|e-)"
INTEGERS = rf"{INTEGER}(?:(?:,|\s+to|\s+and|\s+or|,? \.\.\.,?)\s+{INTEGER})*"
NAMED = (  # what has a number for its name, or a setting behind it
    r"lines?|Table|Figure|section|layers?|[Rr]anks?|seeds?|steps?|head|[Pp]redictions?|[Cc]laims?|[Ss]izes?|dims?|"
    r"lengths?|widths?(?:\s+of)?|(?:weights|logits)\s+times|(?:chunks|tiles|blocks|windows)\s+of"
)
CHOSEN = (  # what a number of is a setting
    r"(?:ranks?|GPUs?|H100s?|H200s?|cores?|tokens?|keys?|queries|heads?|seeds?|layers?|parts?|bits?|bytes?|steps?|"
    r"dimensions?|documents?|processes|threads|positions|hops?|dims?|seqs?|sequences|columns?|terms|words|batchmates)"
)
BOUND = "to be|as|below|within|above|less than|more than|at least|at most|of|by|the"
OWN = f"(?!{re.escape(ADDRESS)})" if ADDRESS else ""
HEADS_OF_TABLES = re.compile(r"^ *\|[^\n]*\n(?= *\|[-|: ]+\|$)", re.MULTILINE)
UNMEASURED = tuple(
    re.compile(each, re.DOTALL | re.MULTILINE)
    for each in (  # what prints a digit that nobody measured, taken out in this order
        r"^## (?:Question|Prediction)s?\b[^\n]*$.*?(?=^## |\Z)",
        r"```.*?```",
        r"^ {4,}(?:accuracy|make|pip|python|torchrun|srun)(?:[^\n]*\\\n)*[^\n]*$",
        r"`(?:[^`\n]|\n(?!\n))*`",
        r"^\[[^\]]+\]: [^\n]*$",
        rf"\[[^\]]*\]\({OWN}https?://[^)]*\)",  # of others
        r"\]\([^)]*\)",
        r"https?://\S+",
        r"<!-- columns.*?<!-- end of columns -->",
        r"<!--.*?-->",
        HEADS_OF_TABLES.pattern,
        r"\d{4}-\d\d-\d\d",
        r"N\(0, \d+(?:\^2)?\)",
        r"arXiv:? ?\d{4}\.\d{4,5}",
        r"\b\d+-bit\b",
        r"\b95%\s+(?:interval|confidence)",
        r"^ *\d+\. ",
        rf"\b(?:predicted|not)(?: (?:{BOUND}))*\s+{LIST}",
        rf"{LIST}%?(?:\s+times)?\s+(?:was|were)\s+predicted",
        r"\d+\.\d+\.\d+\S*",  # versions
        r"\b(?:torch|Triton|Python|CUDA|cuDNN|flash-attn|FlashAttention|JAX|transformers|NCCL|MKL)\s+\d[\d.]*",
        rf"\b(?:{NAMED})\s+{INTEGERS}",
        rf"\bgains?\s+{LIST}",
        rf"(?:{WHOLE}\s+)?\bhead(?:s| dims?)? of {LIST}",
        rf"\b[A-Za-z_]+ ?= ?{LIST}",  # W = 2, 4
        rf"{INTEGERS}\s+(?:\w+\s+)?{CHOSEN}\b",
    )
)

LINE = r"[^\n]+(?:\n|\Z)"
PARAGRAPH = re.compile(rf"^(?=[^\n]*\S){LINE}(?:(?![ \t]*(?:$|[-*] |\d+\. )){LINE})*", re.MULTILINE)
ITEM = re.compile(r"[ \t]*(?:[-*]|\d+\.) ")
SECTION = re.compile(r"\bthis\s+section\b")
UNPUBLISHED, COMMAND = (
    re.compile(r"\bunpublished\b", re.IGNORECASE),
    re.compile(r"`[^`]*\s[^`]*`|the\s+same\s+unpublished"),
)
NUMBER = re.compile(r"(?<![\w.^#/-])(?<![a-z]\+)\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?![\w^])")


def measured_only(document: str) -> str:
    """The document with blanks for what is not measured, of the same length."""
    for pattern in UNMEASURED:
        for place in pattern.finditer(document):
            document = without(document, place)
    return document


def published_only(document: str) -> str:
    """`measured_only` without what is of unpublished runs: each of its numbers has a table."""
    measured = measured_only(document)
    for place in unpublished(document):
        measured = without(measured, place)
    return measured


def unpublished(document: str) -> list[re.Match[str]]:
    """The paragraphs, list items and tables whose numbers are of runs that are not published."""
    found: list[re.Match[str]] = []
    reach: Callable[[str], object] = _nothing
    for place in PARAGRAPH.finditer(document):
        text = place.group()
        further = bool(reach(text))
        if further or UNPUBLISHED.search(text):
            found.append(place)
        if UNPUBLISHED.search(text):
            reach = _section if SECTION.search(text) else _anything if text.rstrip().endswith(":") else _nothing
        elif reach is not _section or not further:
            reach = ITEM.match if further and ITEM.match(text) else _nothing
    return found


def _nothing(_: str) -> bool:
    return False


def _anything(_: str) -> bool:
    return True


def _section(text: str) -> bool:
    return not text.startswith("#")


def without(document: str, place: re.Match[str]) -> str:
    """The document with blanks at a place."""
    blank = re.sub(r"\S", " ", place.group())
    return document[: place.start()] + blank + document[place.end() :]
