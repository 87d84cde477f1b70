"""Where links lead that stand in README.md: on disk, in the built package, with a public address and without one."""

import re
import runpy
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from accuracy.core import public
from accuracy.core.paths import PACKAGE

ROOT = PACKAGE.parent
BUILD = runpy.run_path(str(ROOT / "hatch_build.py"))
FORMER = "github.com/attention-accuracy"  # there is no such repository
EXAMPLE = "https://x.y/me/attention-accuracy"
needs_reports = pytest.mark.skipif(not (ROOT / "reports").is_dir(), reason="a source distribution has no reports/")


def links(markdown: str) -> list[str]:
    """The targets of all links and pictures."""
    inside = [child for token in MarkdownIt("commonmark").parse(markdown) for child in token.children or []]
    found = [each.attrs.get("href") or each.attrs.get("src") for each in inside if each.type in ("link_open", "image")]
    return [str(each) for each in found]


def lost(markdown: str, folder: Path) -> list[str]:
    """Relative targets that are not on disk."""
    relative = [each.partition("#")[0] for each in links(markdown) if not public.is_absolute(each)]
    return [each for each in relative if not (folder / each).exists()]


@needs_reports
def test_every_link_of_the_readme_is_relative_or_another_s_and_leads_to_a_file_and_a_heading() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(links(text)) > 15
    assert lost(text, ROOT) == []
    assert [each for each in links(text) if "attention-accuracy" in each] == []
    assert lost(f"{text}\n[x](nowhere.md)", ROOT) == ["nowhere.md"]
    named = [each.split("#") for each in links(text) if "#" in each]
    assert named
    assert [each for each in named if each[1] not in anchors((ROOT / each[0]).read_text())] == []


def anchors(markdown: str) -> set[str]:
    """Of its headings, as a host makes them."""
    heads = re.findall(r"^#+ (.+)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads}


def test_without_an_address_the_built_description_has_no_link_and_loses_no_word() -> None:
    made = BUILD["of_address"](ROOT, vars(public), "")
    text, source = made["readme"]["text"], (ROOT / "README.md").read_text()
    assert links(text) == []
    assert made["urls"] == {}
    assert "]: " not in text
    assert words(text) == words(re.sub(r"!\[.*?\]\(.*?\)", "", source))


def words(markdown: str) -> Sequence[str]:
    """What a reader reads of it."""
    blocks = (token.children or [token] for token in MarkdownIt("commonmark").parse(markdown))
    said = ("".join("\n" if each.type == "softbreak" else each.content for each in block) for block in blocks)
    return " ".join(said).split()


def test_with_an_address_every_link_of_the_description_leads_there() -> None:
    made = BUILD["of_address"](ROOT, vars(public), EXAMPLE)
    source, found = links((ROOT / "README.md").read_text()), links(made["readme"]["text"])
    assert len(found) == len(source)
    for before, after in zip(source, found, strict=True):
        assert after in (f"{EXAMPLE}/blob/main/{before}", f"{EXAMPLE}/raw/main/{before}", before)
        assert public.is_absolute(after)
    assert sum("/raw/main/" in each for each in found) == 1
    assert set(made["urls"]) == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert BUILD["described"](ROOT) == BUILD["of_address"](ROOT, vars(public), public.ADDRESS)


def test_no_file_names_the_repository_that_there_is_not() -> None:
    command = ["git", "-C", str(ROOT), "grep", "-lIF", FORMER, "--", ".", ":!tests/core/test_public.py"]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode == 128:
        pytest.skip("no checkout of git")
    assert found.stdout.split() == []


CODE = "`[a](b.md)`\n```\n[a](b.md)\n```\n"


def test_links_of_every_kind_are_found_and_code_stays() -> None:
    text = f"[a](b) [c][d] [d][] [d] ![e\nf](g) x[0] [no] {CODE}\n[d]: h 'title'\n"
    there = public.relinked(text, lambda target, picture: f"{target}{'!' * picture}")
    assert there == f"[a](b) [c](h) [d](h) [d](h) ![e\nf](g!) x[0] [no] {CODE}\n"
    assert public.relinked(text, lambda target, picture: "") == f"a c d d  x[0] [no] {CODE}\n"
