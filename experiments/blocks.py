"""Fill the generated blocks of README.md, experiments/*.md and experiments/*/README.md from the published tables.

    python -m experiments.blocks [--check | --freeze | --changed [COMMIT]] [--root FOLDER]

A block ends with `<!-- end -->`. Outside of blocks a document prints no measured number. A block begins with one of

- `<!-- table: NAME -->`: its text is `blocks(tables)[NAME]` of the folder's `tables.py`; `OTHER.NAME` is of the folder
  OTHER.
- `<!-- claims: EXPERIMENT -->`: each of its numbers stands in a claim of `answer` in the experiment's `claims.py`, and
  the experiment's tables bear out all of these claims.
- `<!-- frozen: EXPERIMENTS DIGEST -->`: no code here computes its numbers again, as the experiment's code is in git
  alone or nothing here reads the table. The digest covers its numbers and these experiments' tables in reports/.

--check changes nothing; --freeze renews digests, after somebody has compared the new text with its tables; --changed
prints a line for each number of a generated block that is not what it was in a commit: old, new, relative difference.
"""

import argparse
import hashlib
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from experiments.claim import judge_answer
from experiments.published import Tables

BLOCK = re.compile(r"<!-- (table|claims|frozen): ([^>]*?) -->(\s*)(.*?)(\s*)<!-- end -->", re.DOTALL)
PUBLISHED = (".parquet", ".gz", ".csv", ".txt")
WIDTH = 150
NO_PROSE = re.compile(  # sections about what was expected, limits, code, links, versions
    r"^## (?:Question|Prediction|How to read)s?\b.*?(?=^## |\Z)|^## On the command line.*|```.*?```|`[^`]*`"
    r"|\]\([^)]*\)|^\[[^\]]+\]: [^\n]*|^ {4,}[^\n]*|\d+\.\d+\.\d+\S*"
    r"|\b(?:torch|Triton|Python|flash-attn|JAX|transformers|cuDNN|MKL|since) [\d.]+"
    r"|\b95%\s(?:interval|confidence)",
    re.DOTALL | re.MULTILINE,
)
MEASURED = re.compile(r"(?<![\w.])[\d,.]*\d(?:\.\d+(?!\w)|e-?\d+|%| (?:times|of \d)| ± )")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
QUANTITY = re.compile(r"(?<![\w.-])(\d+(?:\.\d+)?)(?=(?: to \d+(?:\.\d+)?)?(?: times|%| ranks)\b|%)|(factor of \w+)")


def digest(reports: Path, experiments: Iterable[str], text: str) -> str:
    """Of a frozen block's numbers and of the tables that they are of; its words may change."""
    found = hashlib.sha256(" ".join(re.findall(r"[\d.,]*\d(?:e-?\d+)?%?", text)).encode())
    for name in experiments:
        for path in sorted(each for each in (reports / name).rglob("*") if each.suffix in PUBLISHED):
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


def documents(root: Path) -> list[Path]:
    """Those that print measured numbers: README, FINDINGS, ISSUES and the pages of experiments."""
    return [root / "README.md", *sorted(root.glob("experiments/*.md")), *sorted(root.glob("experiments/*/*.md"))]


def unclaimed(text: str, statements: Iterable[str]) -> list[str]:
    """The quantities of a text that no statement has."""
    said, plain = " ".join(statements), " ".join(text.split())
    numbers = [first or second for first, second in QUANTITY.findall(plain)]
    return [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", said)]


def not_borne_out(text: str, experiment: str, tables: Tables) -> Iterator[str]:
    """A line for each claim of the experiment's answer that a table contradicts, and for each number of no claim."""
    judged = [judge_answer(experiment, rows) for rows in tables.of(experiment)]
    yield from (claim.line for claims in judged for claim in claims if claim.holds is False)
    if not any(claims and all(claim.holds for claim in claims) for claims in judged):
        yield "no table can judge all of its claims"
    elif missing := unclaimed(text, [claim.statement for claim in judged[0]]):
        yield f"no claim has {', '.join(missing)}"


def loose(text: str) -> list[str]:
    """The measured numbers that a document prints outside of its blocks, each with some words around it."""
    prose = NO_PROSE.sub(" ", BLOCK.sub(" ", text))
    return [" ".join(prose[max(0, each.start() - 20) : each.end() + 10].split()) for each in MEASURED.finditer(prose)]


def _laid_out(text: str, indent: str) -> str:
    """Paragraphs in lines of a document's width, behind an indent but for the first line; tables and lists as given."""
    wrap = textwrap.TextWrapper(WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    paragraphs = (each if each.startswith(("|", "- ")) else wrap.fill(each) for each in text.split("\n\n"))
    return textwrap.indent("\n\n".join(paragraphs), indent).removeprefix(indent)


def complaints(root: Path, write: bool = False, freeze: bool = False) -> Iterator[str]:
    """A line for each block that its tables do not bear out, and for each measured number outside of a block. write:
    tables' texts into the documents; freeze: new digests, too."""
    tables = Tables(root / "reports")
    blocks = cache(lambda folder: runpy.run_path(str(folder / "tables.py"))["blocks"](tables))
    for path in documents(root):
        found = []
        here = path.parent if path.parent != root else root / "experiments"

        def renewed(block: re.Match[str], here: Path = here, found: list[str] = found) -> str:
            kind, name, before, old, after = block.groups()
            new, label = old, name
            if kind == "claims":
                found += not_borne_out(old, name, tables)
            elif kind == "frozen":
                *names, _ = name.split()
                label = " ".join([*names, digest(tables.reports, names, old)])
                if label != name and not freeze:
                    found.append(f"block 'frozen: {name}': it or its tables changed; compare them, then --freeze")
            else:
                other, _, short = name.rpartition(".")
                new = blocks(root / "experiments" / other if other else here)[short]
                new = _laid_out(new, before.rpartition("\n")[2]) if "\n" in before else new
                if new != old and not write:
                    found.append(f"block 'table: {name}' is not what its table says; `make docs` writes it")
            return f"<!-- {kind}: {label} -->{before}{new}{after}<!-- end -->"

        text = path.read_text()
        new = BLOCK.sub(renewed, text)
        found += [f"a measured number outside of a block: {each}" for each in loose(text)]
        if write and new != text and not any("--freeze" in each for each in found):
            path.write_text(new)
        yield from (f"{path.relative_to(root)}: {each}" for each in found)


def changed(root: Path, commit: str) -> Iterator[str]:
    """A line for each number of a generated block that the documents of a commit have otherwise, and for each block
    that is new, gone, or has more or fewer numbers."""
    old: dict[str, str] = {}
    new: dict[str, str] = {}
    for path in documents(root):
        own = path.parent.name if path.parent != root / "experiments" else ""
        git = ["git", "-C", str(root), "show", f"{commit}:{path.relative_to(root).as_posix()}"]
        before = subprocess.run(git, capture_output=True, text=True).stdout
        for found, text in ((old, before), (new, path.read_text())):
            tables = {each[1]: each[3] for each in BLOCK.findall(text) if each[0] == "table"}
            found.update({name if "." in name else f"{own}.{name}": content for name, content in tables.items()})
    for name in dict.fromkeys([*old, *new]):
        yield from (f"{name}: {each}" for each in differences(old.get(name), new.get(name)))


def differences(old: str | None, new: str | None) -> Iterator[str]:
    """Yield a line for each number in which two texts of a block differ. None stands for a block that is absent."""
    if old is None or new is None:
        yield "is new" if old is None else "is gone"
        return
    before, after = NUMBER.findall(old), NUMBER.findall(new)
    if len(before) != len(after):
        yield f"has {len(after)} numbers in place of {len(before)}"
        return
    for one, other in zip(before, after, strict=True):
        was, now = (float(each.replace(",", "")) for each in (one, other))
        if was != now:
            yield f"{one} -> {other}" + (f" ({now / was - 1:+.2%})" if was else "")


def main(words: list[str]) -> int:
    """0: every block is what its tables say; 1: not, a line for each."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--freeze", action="store_true", help="renew the digests of frozen blocks")
    parser.add_argument("--changed", nargs="?", const="HEAD", metavar="COMMIT", help="list what differs from HEAD's")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="default: this repository")
    options = parser.parse_args(words)
    if not (options.root / "reports").is_dir():
        return 0  # a source distribution has no tables
    if options.changed:
        print(*changed(options.root, options.changed), sep="\n")
        return 0
    found = list(complaints(options.root, not options.check, options.freeze))
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
