"""How does an experiment's README become safe HTML? A small part of Markdown, everything escaped, nothing
fetched.

Understood: paragraphs, `- ` lists, fenced code, pipe tables, `code`, **bold**, and links, which become
plain text.
"""

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

_BLANK = re.compile(r"\n\s*\n")


def sections(text: str) -> dict[str, str]:
    """Title of every `## ` section -> its text."""
    pieces = re.split(r"^## +(.+?) *$", text, flags=re.MULTILINE)
    return {title: body.strip() for title, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def to_html(text: str) -> Markup:
    """The Markdown subset as HTML."""
    return Markup("\n").join(_block(block) for block in _blocks(text))


def _blocks(text: str) -> Iterator[str]:
    """Blocks between blank lines; a fenced block is one, blank lines and all."""
    for place, piece in enumerate(re.split(r"^```.*$", text, flags=re.MULTILINE)):
        if place % 2:
            yield "```" + piece.strip("\n")
        else:
            yield from (block.strip("\n") for block in _BLANK.split(piece) if block.strip())


def _block(block: str) -> Markup:
    lines = block.splitlines()
    if block.startswith("```"):
        return Markup("<pre>{}</pre>").format(block[3:])
    if len(lines) > 2 and lines[0].lstrip().startswith("|") and set(lines[1]) <= set("|-: "):
        return _table(lines)
    if lines[0].startswith(("- ", "* ")):
        items = re.split(r"^[-*] +", block, flags=re.MULTILINE)[1:]
        return Markup("<ul>{}</ul>").format(Markup("").join(Markup("<li>{}</li>").format(_inline(i)) for i in items))
    return Markup("<p>{}</p>").format(_inline(block.lstrip("# ")))


def _table(lines: list[str]) -> Markup:
    def row(line: str, tag: str) -> Markup:
        words = [word.strip() for word in line.strip().strip("|").split("|")]
        return Markup("").join(Markup(f"<{tag}>{{}}</{tag}>").format(_inline(word)) for word in words)

    head = Markup("<tr>{}</tr>").format(row(lines[0], "th"))
    body = Markup("").join(Markup("<tr>{}</tr>").format(row(line, "td")) for line in lines[2:])
    whole = "<table><thead>{}</thead><tbody>{}</tbody></table>"
    return Markup(f'<div class="scroll" tabindex="0">{whole}</div>').format(head, body)


def _inline(text: str) -> Markup:
    safe = str(escape(" ".join(text.split())))
    safe = re.sub(r"!?\[([^\]]*)\]\(([^)\s]*)\)", r"\1 (\2)", safe)
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe))
