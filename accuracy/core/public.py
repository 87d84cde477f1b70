"""Where the project is public, and what the links of its Markdown become elsewhere.

The build reads this file, so that it needs the standard library alone.
"""

import re
from collections.abc import Callable

ADDRESS = ""
"""Of the public repository, as https://github.com/OWNER/attention-accuracy: messages, report pages and the wheel's
description link to it. Empty: there is none, and nothing links to it."""
_CODE = r"```.*?```|`[^`\n]*`"
_LINK = re.compile(rf"{_CODE}|(!?)\[([^\[\]]*)\](?:\(([^()\s]+)\)|\[([^\[\]]*)\])?", re.DOTALL)
_DEFINITION = re.compile(r"^\[([^\[\]]+)\]: *(\S+)[^\n]*\n?", re.MULTILINE)


def address_of(path: str) -> str:
    """Of a file or folder of the public repository; empty where there is none."""
    return f"{ADDRESS}/blob/main/{path}" if ADDRESS else ""


def relinked(markdown: str, address: Callable[[str, bool], str]) -> str:
    """The text with every link at its place, none defined elsewhere. address: of a link's target, and whether it is a
    picture's; empty: the link becomes its words, and a picture is left out."""
    targets = dict(_DEFINITION.findall(markdown))

    def changed(found: re.Match[str]) -> str:
        mark, words, target, name = found.groups()
        target = target or targets.get(name or words or "")
        if not target:  # code, or no link
            return found[0]
        there = address(target, bool(mark))
        return f"{mark}[{words}]({there})" if there else "" if mark else words

    return _LINK.sub(changed, _DEFINITION.sub("", markdown))


def is_absolute(target: str) -> bool:
    """Whether a link's target says where it is by itself."""
    return re.match(r"[a-z][a-z+.-]*:", target) is not None
