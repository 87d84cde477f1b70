"""Where does a link of a file of the repository lead on the site? To the page there, else to the repository. And which
links of the finished site lead nowhere?"""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from accuracy.report.prose import REPOSITORY

_TREE = REPOSITORY.replace("/blob/", "/tree/")
_INLINE = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_NAMED = re.compile(r"(?<=\]: )(\S+)", re.MULTILINE)
_HREF = re.compile(r'<a\b[^>]*?\bhref="([^"#?]+)')
_RAW = re.compile(r"https://raw\.githubusercontent\.com/[^/]+/[^/]+/main")


def relinked(text: str, place: str, page: str, pages: Mapping[str, str]) -> str:
    """The text with its links as the site's. place: of the file in the repository; page: of the text on the site;
    pages: of each file that has one, its page."""

    def address(found: re.Match[str]) -> str:
        return _address(found[1], place, page, pages)

    return _NAMED.sub(address, _INLINE.sub(address, text))


def _address(link: str, place: str, page: str, pages: Mapping[str, str]) -> str:
    if link.startswith("#"):
        return link
    target, mark, anchor = _RAW.sub(REPOSITORY, link).partition("#")
    if re.match(r"[a-z][a-z+.-]*:", target) and not target.startswith((REPOSITORY, _TREE)):
        return link
    if target.startswith((REPOSITORY, _TREE)):
        path = target.removeprefix(REPOSITORY).removeprefix(_TREE).strip("/")
    else:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
    found = next((pages[name] for name in (path, f"{path}/README.md", posixpath.dirname(path)) if name in pages), None)
    if found is None:
        return f"{REPOSITORY}/{path}{mark}{anchor}"
    return posixpath.relpath(found, posixpath.dirname(page) or ".")


def dead(site: Path) -> list[str]:
    """`page: link` of every link between the site's pages, the reports and the leaderboard too, to a file that is not
    there."""
    found = []
    for page in sorted(site.rglob("*.html")):
        for link in dict.fromkeys(_HREF.findall(page.read_text(encoding="utf-8"))):
            target = page.parent / unquote(link)
            if not re.match(r"[a-z][a-z+.-]*:", link) and not target.exists():
                found.append(f"{page.relative_to(site)}: {link}")
    return found
