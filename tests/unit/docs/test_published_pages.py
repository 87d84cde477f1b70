import re
from pathlib import Path

import pandas as pd
import pytest

from accuracy.report.folder import read_folder
from docs import build
from docs.leaderboard import COLUMNS, SHOWN, to_html
from docs.links import dead
from experiments.blocks import documents
from experiments.many_ranks.tables import TABLE, board
from experiments.published import TENSORS

ROOT = Path(__file__).parents[3]
REPORTS, LOG = ROOT / "reports", ROOT / "experiments" / "FINDINGS.md"
RUN = "reports/bpt_backward/nvidia-h200"
pytestmark = pytest.mark.skipif(not REPORTS.is_dir(), reason="a source distribution has no reports/")


def test_the_site_has_findings_and_every_local_link_leads_to_a_page(tmp_path: Path) -> None:
    """Of the repository with a single published run, whose report is quick to write."""
    checkout, source = tmp_path / "checkout", tmp_path / "source"
    for name in ("experiments", "examples", "README.md", "configs/README.md", "accuracy/gate/README.md", RUN):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).symlink_to(ROOT / name)
    build.write_pages(checkout, source, build.write_reports(checkout, source / "_whole"))
    index = (source / "index.md").read_text()
    findings = re.findall(r"^## (\d+)\. ", index, re.MULTILINE)
    assert findings == [str(number) for number in range(1, len(findings) + 1)] != []
    assert (source / "_whole" / RUN / "report.html").is_file()
    assert "bpt_ring_stale: dq, dk and dv are wrong" in (source / f"{RUN}.md").read_text().replace("\\", "")
    assert dead_links(source) == []
    (source / "index.md").write_text(f"{index}\n[nowhere](experiments/nowhere.md)\n")
    assert dead_links(source) == ["index.md: experiments/nowhere.md"]


def dead_links(source: Path) -> list[str]:
    """Links of the site's pages to files that it lacks; in `make site` Sphinx's -W finds them too."""
    found = []
    for path in sorted(source.rglob("*.md")):
        for link in re.findall(r"\]\(([^)\s#]+)|\]: (\S+)", path.read_text()):
            target = "".join(link)
            if not re.match(r"[a-z]+:", target) and not (path.parent / target).exists():
                found.append(f"{path.relative_to(source)}: {target}")
    return found


def test_a_link_of_the_finished_site_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "index.html").write_text('<a class="x" href="reports/a%20b.html#part">a</a> <a href="#here">b</a>')
    links = '<a href="../index.html?x=1">a</a> <a href="https://example.org/x.html">b</a> <a href="a.html">c</a>'
    (tmp_path / "reports" / "a b.html").write_text(links)
    assert dead(tmp_path) == ["reports/a b.html: a.html"]


def test_findings_are_numbered_dated_linked_and_those_of_the_readme() -> None:
    text = LOG.read_text()
    items = re.split(r"^(?=\d+\. )", text, flags=re.MULTILINE)[1:]
    found = [re.match(r"(\d+)\. \*\*([^*]+\.)\*\* .*\d{4}-\d{2}-\d{2}\.", " ".join(item.split())) for item in items]
    assert [match and int(match[1]) for match in found] == list(range(1, len(items) + 1))
    quoted = re.findall(r"^\d+\. \*\*([^*]+)\*\*", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert quoted
    assert {*quoted} <= {match[2] for match in found if match}
    links = [LOG.parent / link for link in re.findall(r"\]\(([^)]+)\)", text)]
    assert [link for link in links if not link.exists()] == []
    published = {path.parent.resolve() for path in REPORTS.glob("*/*/results.parquet")}
    assert published - {link.resolve().parent for link in links} == set()


def test_no_page_tells_a_number_of_a_run_whose_table_is_not_published() -> None:
    """From any number two clicks lead to its table and to the command that measures it."""
    pages = {path: " ".join(path.read_text().lower().split()) for path in [*documents(ROOT), REPORTS / "README.md"]}
    assert [path for path, text in pages.items() if "unpublished" in text or "no table is published" in text] == []


def test_a_number_is_the_worst_rank_s_error_over_single_device_s_and_the_page_shows_one_problem_first() -> None:
    """The mean over seeds; every other problem is hidden, and names are escaped."""
    folder = REPORTS / TABLE
    found = board(folder)
    one = "variant == 'transformer_engine_p2p' and world_size == 8 and heads_kv == 8 and dtype == 'bfloat16'"
    rows = read_folder(folder).results.query(f"{one} and mask == 'causal' and tensor == 'dk'")
    times = rows["error_rel"] / rows["single_device_rel"]
    (row,) = found.query(one).to_dict("records")
    assert row["dk"] == pytest.approx(times[rows["rank"] >= 0].groupby(rows["seed"]).max().mean())
    assert row["all_dk"] == pytest.approx(times[rows["rank"] < 0].mean())
    assert row["worst"] == max(row[name] for name in TENSORS)
    page = to_html(found, "x/y/report.html")
    chosen = found[(found[[*SHOWN]] == pd.Series(SHOWN)).all(axis=1)]
    assert len(re.findall(r'<tr data-of="[^"]*">', page)) == len(chosen) > 10
    assert len(re.findall(r'<tr data-of="[^"]*" hidden>', page)) == len(found) - len(chosen)
    assert page.count("<td data-value=") == len(found) * len(COLUMNS)
    assert "<script>x" not in to_html(found.assign(variant="<script>x"), "x")
