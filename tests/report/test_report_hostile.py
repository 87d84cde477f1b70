import pytest

from accuracy.core import public
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

1. first

   still first
2. second

|a|b|
|-|-|
|1|2|

[text](https://x.y) and [beside](../depth/README.md), <b>raw</b>

    indented code

```
x <y

z
```
"""
PARTS = (
    "<strong>bold</strong>", "<code>code</code>", "<li>one</li>", "<td>2</td>", 'href="https://x.y"', 
    "<pre><code>indented code", "x &lt;y\n\nz",
    "<ol>", "<p>still first</p>", "&lt;b&gt;raw",
)  # fmt: skip


def test_the_markdown_in_use_is_understood() -> None:
    html = to_html(MARKDOWN, "experiments/packages")
    assert [part for part in PARTS if part not in html] == []


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("", '<span title="experiments/depth/README.md">beside</span>'),
        ("https://x.z/a", '<a href="https://x.z/a/blob/main/experiments/depth/README.md">beside</a>'),
    ],
)
def test_a_link_to_a_file_leads_to_the_public_repository_or_is_its_words(
    address: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public, "ADDRESS", address)
    html = to_html(MARKDOWN, "experiments/packages")
    assert part in html
    assert '<a href="https://x.y">text</a>' in html


@pytest.mark.parametrize("link", ["javascript:alert(1)", "data:text/html,x", "vbscript:x"])
def test_a_link_that_would_run_is_no_link(link: str) -> None:
    assert "href" not in to_html(f"[text]({link})")
