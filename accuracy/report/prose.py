"""What did the experiment ask, expect and find? Its README.md as safe HTML: raw HTML is escaped, nothing is fetched.

Links lead to the public repository, whose files a page that was mailed does not have beside it. Where there is none, a
link to a file is its words, with the file's path as their title.
"""

import posixpath
import re
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from accuracy.core import paths
from accuracy.results.claim import experiment_folder

TITLES = ("Question", "Prediction", "Finding")
MARK = r"<!-- (?:(?:table|claims|frozen): [^>]*|end) -->"  # of a block that experiments/blocks.py fills


def passages(experiment: str) -> dict[str, Markup]:
    """Question, prediction and finding by title, as far as the experiment's README has them."""
    found = _readme(experiment)
    return {title: to_html(found[title], f"experiments/{experiment}") for title in TITLES if found.get(title)}


def answer(experiment: str) -> Markup:
    """The README's Answer; empty where it has none."""
    return to_html(_readme(experiment).get("Answer", ""), f"experiments/{experiment}")


def sections(text: str) -> dict[str, str]:
    """Title of every `## ` section -> its text."""
    pieces = re.split(r"^## +(.+?) *$", text, flags=re.MULTILINE)
    return {title: body.strip() for title, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def to_html(text: str, folder: str = "experiments") -> Markup:
    """CommonMark with pipe tables as HTML, without raw HTML and images. folder: where in the repository it stands, for
    its relative links."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = markdown.parse(text)
    tag = "a"
    for each in (child for token in tokens for child in token.children or []):
        if each.type == "link_open":
            each.attrs = _target(str(each.attrs["href"]), folder)
            tag = "a" if "href" in each.attrs else "span"
        if each.type in ("link_open", "link_close"):
            each.tag = tag
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))


def _readme(experiment: str) -> dict[str, str]:
    folder: Path | None = experiment_folder(experiment)
    if folder is None or not (folder / "README.md").is_file():
        return {}
    text = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    return sections(re.sub(f"^ *{MARK}\n|{MARK}", "", text, flags=re.MULTILINE))


def _target(link: str, folder: str) -> dict[str, str | int | float]:
    """`href`, an absolute address: of a relative link, that of the file in the repository; without one, its `title`."""
    if paths.is_absolute(link) or link.startswith("#"):
        return {"href": link}
    path = posixpath.normpath(posixpath.join(folder, link))
    return {"href": there} if (there := paths.address_of(path)) else {"title": path}
