"""What did the experiment ask, expect and find? Its README.md as safe HTML: raw HTML is escaped, nothing is fetched.

Links lead to the repository, whose files a page that was mailed does not have beside it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from accuracy.results.claim import experiment_folder

TITLES = ("Question", "Prediction", "Finding")
REPOSITORY = "https://github.com/attention-accuracy/attention-accuracy/blob/main"


def passages(experiment: str) -> dict[str, Markup]:
    """Question, prediction and finding by title, as far as the experiment's README has them."""
    found = _readme(experiment)
    return {title: to_html(found[title], f"experiments/{experiment}") for title in TITLES if found.get(title)}


def answer(experiment: str) -> tuple[str, Markup]:
    """The README's Answer: its first paragraph as plain text, the rest as HTML; both empty where it has none."""
    first, _, rest = _readme(experiment).get("Answer", "").partition("\n\n")
    return _plain(first), to_html(rest.strip(), f"experiments/{experiment}")


def sections(text: str) -> dict[str, str]:
    """Title of every `## ` section -> its text."""
    pieces = re.split(r"^## +(.+?) *$", text, flags=re.MULTILINE)
    return {title: body.strip() for title, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def to_html(text: str, folder: str = "experiments") -> Markup:
    """Markdown as HTML. folder: where in the repository it stands, for its relative links."""
    markdown = _markdown()
    tokens = markdown.parse(text)
    for each in (child for token in tokens for child in token.children or []):
        if each.type == "link_open":
            each.attrs["href"] = _address(str(each.attrs["href"]), folder)
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))


def _readme(experiment: str) -> dict[str, str]:
    folder: Path | None = experiment_folder(experiment)
    if folder is None or not (folder / "README.md").is_file():
        return {}
    return sections((folder / "README.md").read_text(encoding="utf-8", errors="replace"))


def _markdown() -> MarkdownIt:
    """CommonMark with pipe tables; raw HTML and images are off; a wide table or block scrolls by itself."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    markdown.add_render_rule("table_open", _opened)
    markdown.add_render_rule("table_close", _closed)
    return markdown


def _opened(*_: Any) -> str:
    return '<div class="scroll" tabindex="0"><table>\n'


def _closed(*_: Any) -> str:
    return "</table></div>\n"


def _address(link: str, folder: str) -> str:
    """An absolute address: of a relative link, that of the file in the repository."""
    if re.match(r"[a-z][a-z+.-]*:", link) or link.startswith("#"):
        return link
    return f"{REPOSITORY}/{posixpath.normpath(posixpath.join(folder, link))}"


def _plain(text: str) -> str:
    """Text without its marks, in one line."""
    tokens: list[Token] = _markdown().parse(text)
    parts = (child for token in tokens for child in token.children or [])
    return " ".join("".join(each.content or (" " if each.type == "softbreak" else "") for each in parts).split())
