import pytest

from accuracy.report.prose import sections, to_html
from tests.report import page_check
from tests.report.synthetic import HOSTILE


def test_hostile_text_makes_no_element(hostile_page: str) -> None:
    assert page_check.dangerous(hostile_page) == []
    assert HOSTILE not in hostile_page
    assert "{{7*7}}" in hostile_page  # shown as written, not computed


def test_hostile_text_is_shown(hostile_page: str) -> None:
    assert hostile_page.count("&lt;script&gt;window.hacked=1") > 8


@pytest.mark.parametrize("fault", [HOSTILE, "<p onclick=x>", "<iframe></iframe>"])
def test_the_checker_sees_text_that_was_not_escaped(hostile_page: str, fault: str) -> None:
    assert page_check.dangerous(hostile_page.replace("</main>", f"{fault}</main>"))


def test_an_experiments_readme_is_escaped() -> None:
    text = "# Title\n## Question\nX\n\n- `X`\n\n```\nX\n```\n\n|a|b|\n|-|-|\n|X|1|\n".replace("X", HOSTILE)
    html = to_html(sections(text)["Question"])
    assert page_check.dangerous(html) == []
    assert "<script" not in html


MARKDOWN = """A **bold** `code`.

- one
- two

|a|b|
|-|-|
|1|2|

[text](https://x.y)

```
x <y

z
```
"""
PARTS = ("<strong>bold</strong>", "<code>code</code>", "<li>one</li>", "<td>2</td>", "(https://x.y)", "x &lt;y\n\nz")


def test_the_markdown_in_use_is_understood() -> None:
    assert [part for part in PARTS if part not in to_html(MARKDOWN)] == []
