"""Where links lead that stand in README.md: on disk, in the built package, with a public address and without one."""

import re
import runpy

import pytest
from markdown_it import MarkdownIt

from accuracy.core import paths
from accuracy.core.paths import PACKAGE

ROOT = PACKAGE.parent
README = (ROOT / "README.md").read_text()
BUILD = runpy.run_path(str(ROOT / "hatch_build.py"))
EXAMPLE = "https://x.y/me/attention-accuracy"


def links(markdown: str) -> list[str]:
    inside = [child for token in MarkdownIt("commonmark").parse(markdown) for child in token.children or []]
    found = [each.attrs.get("href") or each.attrs.get("src") for each in inside if each.type in ("link_open", "image")]
    return [str(each) for each in found]


def words(markdown: str) -> list[str]:
    """What a reader reads of it."""
    blocks = (token.children or [token] for token in MarkdownIt("commonmark").parse(markdown))
    said = ("".join("\n" if each.type == "softbreak" else each.content for each in block) for block in blocks)
    return " ".join(said).split()


@pytest.mark.skipif(not (ROOT / "reports").is_dir(), reason="a source distribution has no reports/")
def test_every_link_of_the_readme_is_relative_or_another_s_and_leads_to_a_file_and_a_heading() -> None:
    found = [each for each in links(README) if not paths.is_absolute(each)]
    assert len(found) > 15
    assert [each for each in links(README) if "attention-accuracy" in each] == []
    for path, _, anchor in (each.partition("#") for each in found):
        assert (ROOT / path).exists(), path
        if anchor:
            heads = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE)  # as a host makes anchors of them
            assert anchor in {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads}


def test_without_an_address_the_built_description_has_others_links_alone_and_loses_no_word() -> None:
    made = BUILD["of_address"](ROOT, vars(paths), "")
    text = made["readme"]["text"]
    assert (made["urls"], "]: " in text) == ({}, False)
    assert [each for each in links(text) if not paths.is_absolute(each)] == []
    assert words(text) == words(re.sub(r"!\[.*?\]\(.*?\)", "", README))


def test_with_an_address_every_link_of_the_description_leads_there() -> None:
    made = BUILD["of_address"](ROOT, vars(paths), EXAMPLE)
    found = links(made["readme"]["text"])
    for before, after in zip(links(README), found, strict=True):
        assert after in (f"{EXAMPLE}/blob/main/{before}", f"{EXAMPLE}/raw/main/{before}", before)
        assert paths.is_absolute(after)
    assert sum("/raw/main/" in each for each in found) == 1
    assert set(made["urls"]) == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert BUILD["described"](ROOT) == BUILD["of_address"](ROOT, vars(paths), paths.ADDRESS)


def test_links_of_every_kind_are_found_and_code_stays() -> None:
    code = "`[a](b.md)`\n```\n[a](b.md)\n```\n"
    text = f"[a](b) [c][d] [d][] [d] ![e\nf](g) x[0] [no] {code}\n[d]: h 'title'\n"
    there = paths.relinked(text, lambda target, picture: f"{target}{'!' * picture}")
    assert there == f"[a](b) [c](h) [d](h) [d](h) ![e\nf](g!) x[0] [no] {code}\n"
    assert paths.relinked(text, lambda target, picture: "") == f"a c d d  x[0] [no] {code}\n"
