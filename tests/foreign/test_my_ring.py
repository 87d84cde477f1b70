"""A ring that is wrong from 3 ranks on is found in every way in which a newcomer would try it; a right one never is.

The ways: diagnose; a script under torchrun; plain pytest; torchrun -m pytest; assert_accurate(world_size=4); the
accuracy_gate fixture; variant=callable; experiment=diagnose variant=callable.
"""

import re
from pathlib import Path

import pytest

import accuracy
from tests.foreign import my_ring
from tests.processes import python

pytestmark = pytest.mark.xdist_group("my_ring")
SMALL = {"seqlen": 96, "heads": 4, "heads_kv": 2, "head_dim": 16}
WORDS = [f"problem.{name}={value}" for name, value in SMALL.items()]
BOTH = {"ring_good": False, "ring_bad": True}
SCRIPT = f"""
import sys
import accuracy
from tests.foreign import my_ring

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


def pytest_of(suite: str, folder: Path, *before: str) -> str:
    """What pytest says of a suite."""
    (folder / "test_suite.py").write_text(suite)
    plugin = ("-p", "accuracy.api.pytest_plugin")
    done = python(*before, "-m", "pytest", "-q", *plugin, "-p", "no:cacheprovider", folder=folder,
                  PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.stress(1)
@pytest.mark.parametrize("name", BOTH)
def test_by_diagnose(name: str) -> None:
    found = accuracy.diagnose(getattr(my_ring, name), dtype="bfloat16", **SMALL)
    assert found.is_bug == BOTH[name], found.sentence
    assert set(found.results.loc[found.results["status"] == "ok", "world_size"]) == {1, 2, 3, 4}


@pytest.mark.stress(1)
@pytest.mark.parametrize("name", BOTH)
def test_by_a_script_under_torchrun(name: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python(*TORCHRUN, "script.py", name, folder=tmp_path)
    said = re.findall(r"<(\w+) (\w+) (.*?)>", done.stdout)
    expected = "logic" if BOTH[name] else "rounding", str(BOTH[name]), "[1, 2, 3]"
    assert said == [expected] * 3, done.stdout + done.stderr


@pytest.mark.stress(1)
@pytest.mark.parametrize(
    ("suite", "before"), [(SUITE, ()), (SUITE, TORCHRUN), (GATED, ())], ids=["alone", "torchrun", "fixture"]
)
def test_by_pytest(suite: str, before: tuple[str, ...], tmp_path: Path) -> None:
    said = pytest_of(suite, tmp_path, *before)
    assert said.count("1 failed, 1 passed") == (3 if before else 1), said
    assert ("ring_bad bfloat16 W=3" if suite == GATED else "ring_bad (bfloat16, 3 ranks") in said


def test_by_assert_accurate_on_four_ranks() -> None:
    rows = accuracy.assert_accurate(my_ring.ring_good, world_size=4, **SMALL)
    assert set(rows["world_size"]) == {4}
    with pytest.raises(AssertionError, match="4 ranks"):
        accuracy.assert_accurate(my_ring.ring_bad, world_size=4, **SMALL)


@pytest.mark.stress(1)
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("experiment", [(), ("experiment=diagnose", "dtype=bfloat16")], ids=["plain", "diagnose"])
def test_by_the_command(experiment: tuple[str, ...], name: str, tmp_path: Path) -> None:
    fn = f"variant.fn=tests.foreign.my_ring.{name}"
    done = python("-m", "accuracy", *experiment, "variant=callable", fn, *WORDS, "output_dir=run", folder=tmp_path)
    assert done.returncode == (5 if experiment and BOTH[name] else 0), done.stdout + done.stderr
    assert ("dk and dv are wrong" in done.stdout) == BOTH[name], done.stdout
