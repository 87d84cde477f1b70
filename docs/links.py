"""Where does a link of a file of the repository lead on the site? To the page there, else to the public repository;
without one it is its words. And which links of the finished site lead nowhere?"""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from accuracy.core import paths

_HREF = re.compile(r'<a\b[^>]*?\bhref="([^"#?]+)')


def relinked(text: str, place: str, page: str, pages: Mapping[str, str]) -> str:
    """The text with its links as the site's. place: of the file in the repository; page: of the text on the site;
    pages: of each file that has one, its page."""

    return paths.relinked(text, lambda link, picture: _address(link, place, page, {} if picture else pages))


def _address(link: str, place: str, page: str, pages: Mapping[str, str]) -> str:
    """Empty: the link leads nowhere."""
    if link.startswith("#") or paths.is_absolute(link):
        return link
    target, mark, anchor = link.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
    found = next((pages[name] for name in (path, f"{path}/README.md", posixpath.dirname(path)) if name in pages), None)
    if found is None:
        return paths.address_of(f"{path}{mark}{anchor}")
    return posixpath.relpath(found, posixpath.dirname(page) or ".") + mark + anchor


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
