"""What did the experiment ask, expect and find? Its README.md as safe HTML: everything escaped, nothing fetched.

Of Markdown it understands paragraphs, `- ` lists, fenced code, pipe tables, `code`, **bold**, and links, which become
plain text.
"""

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

from accuracy.results.claim import experiment_folder

TITLES = ("Question", "Prediction", "Finding")


def passages(experiment: str) -> dict[str, Markup]:
    """Question, prediction and finding by title, as far as the experiment's README has them."""
    folder = experiment_folder(experiment)
    if folder is None or not (folder / "README.md").is_file():
        return {}
    found = sections((folder / "README.md").read_text(encoding="utf-8", errors="replace"))
    return {title: to_html(found[title]) for title in TITLES if found.get(title)}


def sections(text: str) -> dict[str, str]:
    """Title of every `## ` section -> its text."""
    pieces = re.split(r"^## +(.+?) *$", text, flags=re.MULTILINE)
    return {title: body.strip() for title, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def to_html(text: str) -> Markup:
    """The Markdown subset as HTML."""
    return Markup("\n").join(map(_block, _blocks(text)))


def _blocks(text: str) -> Iterator[str]:
    """Blocks between blank lines; a fenced block is one, blank lines and all."""
    for place, piece in enumerate(re.split(r"^```.*$", text, flags=re.MULTILINE)):
        if place % 2:
            yield "```" + piece.strip("\n")
        else:
            yield from (block.strip("\n") for block in re.split(r"\n\s*\n", piece) if block.strip())


def _block(block: str) -> Markup:
    lines = block.splitlines()
    if block.startswith("```"):
        return Markup("<pre>{}</pre>").format(block[3:])
    if len(lines) > 2 and lines[0].lstrip().startswith("|") and set(lines[1]) <= set("|-: "):
        head, body = _row(lines[0], "th"), Markup("").join(_row(line, "td") for line in lines[2:])
        whole = "<table><thead>{}</thead><tbody>{}</tbody></table>"
        return Markup(f'<div class="scroll" tabindex="0">{whole}</div>').format(head, body)
    if lines[0].startswith(("- ", "* ")):
        return Markup("<ul>{}</ul>").format(_each("li", re.split(r"^[-*] +", block, flags=re.MULTILINE)[1:]))
    return Markup("<p>{}</p>").format(_inline(block.lstrip("# ")))


def _row(line: str, tag: str) -> Markup:
    return Markup("<tr>{}</tr>").format(_each(tag, line.strip().strip("|").split("|")))


def _each(tag: str, texts: list[str]) -> Markup:
    return Markup("").join(Markup(f"<{tag}>{{}}</{tag}>").format(_inline(text)) for text in texts)


def _inline(text: str) -> Markup:
    safe = str(escape(" ".join(text.split())))
    safe = re.sub(r"!?\[([^\]]*)\]\(([^)\s]*)\)", r"\1 (\2)", safe)
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe))
