"""A ring that is wrong from 3 ranks on is found in every way in which a newcomer would try it; a right one never is.

The ways: diagnose; a script under torchrun; plain pytest; torchrun -m pytest; assert_accurate(world_size=4); the
accuracy_gate fixture; variant=callable; experiment=diagnose variant=callable.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import accuracy
from accuracy.config import resolve
from tests.foreign import my_ring
from tests.foreign.twins import FEW_PAIRS
from tests.processes import python

pytestmark = pytest.mark.xdist_group("my_ring")
SMALL = {"seqlen": 96, "heads": 4, "heads_kv": 2, "head_dim": 16}
WORDS = [f"problem.{name}={value}" for name, value in SMALL.items()]
BOTH = {"ring_good": False, "ring_bad": True}
SCRIPT = f"""
import sys
import accuracy
from accuracy.config import resolve
from tests.foreign import my_ring

resolve.MOST_PAIRS_AGAIN = {FEW_PAIRS}
found = accuracy.diagnose(getattr(my_ring, sys.argv[1]), dtype="bfloat16", **{SMALL})
ran = sorted(set(found.results.loc[found.results["status"] == "ok", "world_size"]))
print(f"<{{found.label}} {{found.is_bug}} {{ran}}>", flush=True)
"""
SUITE = f"""
from accuracy import assert_accurate
from tests.foreign.my_ring import ring_bad, ring_good

def test_good():
    assert_accurate(ring_good, **{SMALL})

def test_bad():
    assert_accurate(ring_bad, **{SMALL})
"""
GATED = SUITE.replace("():", "(accuracy_gate):").replace(" assert_accurate(", " accuracy_gate(seeds=[0, 1], fn=")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3")


@pytest.mark.stress(1)
@pytest.mark.parametrize("name", BOTH)
def test_by_diagnose(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "MOST_PAIRS_AGAIN", FEW_PAIRS)
    found = accuracy.diagnose(getattr(my_ring, name), dtype="bfloat16", **SMALL)
    assert found.is_bug == BOTH[name], found.sentence
    assert set(found.results.loc[found.results["status"] == "ok", "world_size"]) == {1, 2, 3, 4}


@pytest.mark.stress(1)
@pytest.mark.parametrize("name", BOTH)
def test_by_assert_accurate_on_four_ranks(name: str) -> None:
    how = {"world_size": 4, **SMALL}
    if not BOTH[name]:
        assert set(accuracy.assert_accurate(my_ring.ring_good, **how)["world_size"]) == {4}
        return
    with pytest.raises(AssertionError, match="4 ranks"):
        accuracy.assert_accurate(my_ring.ring_bad, **how)


def script(name: str, folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT)
    done = python(*TORCHRUN, "script.py", name, folder=folder)
    found = re.findall(r"<(\w+) (\w+) (.*?)>", done.stdout)
    expected = "logic" if BOTH[name] else "rounding", str(BOTH[name]), "[1, 2, 3]"
    assert found == [expected] * 3, done.stdout + done.stderr


def pytest_of(suite: str, *before: str) -> Callable[[str, Path], None]:
    """Run pytest on a suite that has a test of either ring."""

    def way(name: str, folder: Path) -> None:
        (folder / "test_suite.py").write_text(suite)
        words = "-m", "pytest", "-q", "-p", "accuracy.api.pytest_plugin", "-p", "no:cacheprovider"
        done = python(*before, *words, folder=folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        assert done.stdout.count("1 failed, 1 passed") == (3 if before else 1), done.stdout + done.stderr
        assert re.search(r"ring_bad (bfloat16 W=3|\(bfloat16, 3 ranks)", done.stdout), done.stdout + done.stderr

    return way


def command(*words: str) -> Callable[[str, Path], None]:
    """Run the command."""

    def way(name: str, folder: Path) -> None:
        fn = f"variant.fn=tests.foreign.my_ring.{name}"
        done = python("-m", "accuracy", *words, "variant=callable", fn, *WORDS, "output_dir=run", folder=folder)
        assert done.returncode == (5 if words and BOTH[name] else 0), done.stdout + done.stderr
        assert ("dk and dv are wrong" in done.stdout) == BOTH[name], done.stdout

    return way


WAYS = {
    "a script under torchrun": script, "pytest": pytest_of(SUITE), "torchrun -m pytest": pytest_of(SUITE, *TORCHRUN),
    "the fixture": pytest_of(GATED), "the command": command(),
    "experiment=diagnose": command("experiment=diagnose", "dtype=bfloat16"),
}  # fmt: skip


SUITES = ("pytest", "torchrun -m pytest", "the fixture")  # which have a test of either ring


@pytest.mark.stress(2)
@pytest.mark.parametrize(
    ("way", "name"), [(way, name) for way in WAYS for name in BOTH if BOTH[name] or way not in SUITES]
)
def test_by_another_process(way: str, name: str, tmp_path: Path) -> None:
    WAYS[way](name, tmp_path)
