"""A page out of a template: one Jinja environment, autoescaped, with the style that all pages share."""

from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from accuracy.chart import mark

PAGE = Path(__file__).parent / "page"


def render(folder: Path, template: str, **context: Any) -> bytes:
    """A template of `folder` (or of this one), filled in; `style` is given to all."""
    style = Markup((PAGE / "report.css").read_text(encoding="utf-8") + mark.palette_style())
    return templates(folder).get_template(template).render(**context, style=style).encode("utf-8", errors="replace")


@cache
def templates(folder: Path) -> jinja2.Environment:
    """Those of `folder` and of this one, each compiled once, when it is first asked for."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, PAGE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
