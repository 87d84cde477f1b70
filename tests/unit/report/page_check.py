"""Checkers of a report page, on Python's own HTML parser, each returning its complaints: none is fine. And the rows
inside a page, read back as its own script reads them. Nothing here shares code with what writes the page."""

import base64
import gzip
import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

LOADING = ("src", "href", "xlink:href", "action", "data", "poster", "srcset")


@dataclass(frozen=True)
class Element:
    tag: str
    attributes: dict[str, str | None]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(Element(tag, dict(attrs)))


def elements(page: str) -> list[Element]:
    reader = _Reader()
    reader.feed(page)
    return reader.found


def external_loads(page: str) -> list[str]:
    """Addresses that are neither inside the page nor data; a link that a reader follows loads nothing by itself."""
    found = []
    for element in elements(page):
        inside = ("#", "data:", "https://") if element.tag == "a" else ("#", "data:")
        named = [(name, element.attributes.get(name)) for name in LOADING]
        found += [f"{element.tag} {name}={value}" for name, value in named if value and not value.startswith(inside)]
    styles = re.findall(r"<style>.*?</style>", page, flags=re.DOTALL)
    return found + [text for style in styles for text in re.findall(r"@import[^;]*|url\((?!#)[^)]*\)", style)]


def repeated_identifiers(page: str) -> set[str]:
    names = [e.attributes["id"] for e in elements(page) if e.attributes.get("id")]
    return {str(name) for name in names if names.count(name) > 1}


def dangerous(page: str) -> list[str]:
    """Elements and attributes that only an injected text can have made."""
    found = elements(page)
    extra = [e.tag for e in found if e.tag == "script"][2:]
    extra += [e.tag for e in found if e.tag in ("img", "iframe", "object", "embed", "form", "base")]
    return extra + [name for e in found for name in e.attributes if name.startswith("on")]


def embedded(page: str) -> dict[str, list[Any]]:
    """Column name -> values, and the command of every row as the column `command`."""
    text = re.search(r'<script type="text/plain" id="rows-data"[^>]*>([^<]*)</script>', page)
    assert text is not None
    return decoded(text[1])


def decoded(encoded: str) -> dict[str, list[Any]]:
    head = json.loads(gzip.decompress(base64.b64decode(encoded)))
    columns: dict[str, list[Any]] = {"command": [head["commands"][case] for case in head["cases"]]}
    infinite = {"inf": float("inf"), "-inf": float("-inf")}
    for column in head["columns"]:
        if "texts" in column:
            values = [None if place < 0 else column["texts"][place] for place in column["places"]]
        else:
            values = [infinite.get(value, value) if isinstance(value, str) else value for value in column["numbers"]]
        columns[column["name"]] = [values[case] for case in head["cases"]] if column["by_case"] else values
    return columns
