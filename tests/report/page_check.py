"""Checkers of a report page, on Python's own HTML parser. Each returns its complaints: none is fine."""

import re
from dataclasses import dataclass
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "hr", "img"}
LOADING = ("src", "href", "xlink:href", "action", "data", "poster", "srcset")


@dataclass(frozen=True)
class Element:
    tag: str
    attributes: dict[str, str | None]
    ancestors: tuple["Element", ...]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[Element] = []
        self.found: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs), tuple(self.open))
        self.found.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(Element(tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag: str) -> None:
        for place in reversed(range(len(self.open))):
            if self.open[place].tag == tag:
                del self.open[place:]
                return


def elements(page: str) -> list[Element]:
    reader = _Reader()
    reader.feed(page)
    return reader.found


def external_loads(page: str) -> list[str]:
    """Addresses that are neither inside the page nor data; a link that a reader follows loads nothing by itself."""
    found = []
    for element in elements(page):
        for name in LOADING:
            value = element.attributes.get(name)
            followed = element.tag == "a" and (value or "").startswith("https://")
            if value is not None and not followed and not value.startswith(("#", "data:")):
                found.append(f"{element.tag} {name}={value}")
    styles = re.findall(r"<style>.*?</style>", page, flags=re.DOTALL)
    return found + [text for style in styles for text in re.findall(r"@import[^;]*|url\((?!#)[^)]*\)", style)]


def charts_without_text(page: str) -> list[str]:
    """Charts that lack a title, a description, or a table of their numbers in the same figure."""
    found = elements(page)
    complaints = []
    for chart in [element for element in found if element.attributes.get("class") == "chart"]:
        labels = (chart.attributes.get("aria-labelledby") or "").split()
        inside = {e.attributes.get("id"): e.tag for e in found if chart in e.ancestors}
        named = [inside.get(label) for label in labels] == ["title", "desc"]
        if chart.attributes.get("role") != "img" or not named:
            complaints.append(f"{labels}: no title and description")
        figure = next((e for e in reversed(chart.ancestors) if e.tag == "figure"), None)
        if figure is None or not any(
            e.tag == "table" and figure in e.ancestors and any(a.tag == "details" for a in e.ancestors) for e in found
        ):
            complaints.append(f"{labels}: no table")
    return complaints


def repeated_identifiers(page: str) -> set[str]:
    """Ids that occur more than once."""
    names = [e.attributes["id"] for e in elements(page) if e.attributes.get("id")]
    return {str(name) for name in names if names.count(name) > 1}


def dangerous(page: str) -> list[str]:
    """Elements and attributes that only an injected text can have made."""
    found = elements(page)
    scripts = [e for e in found if e.tag == "script"]
    return (
        [f"script {e.attributes}" for e in scripts[2:]]
        + [e.tag for e in found if e.tag in ("img", "iframe", "object", "embed", "form", "base")]
        + [name for e in found for name in e.attributes if name.startswith("on")]
    )
