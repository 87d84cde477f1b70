"""A part of one's own is one Python file and one YAML file: listed, run and held to the contract as it lies there."""

from pathlib import Path

import pytest

from accuracy.core.paths import PACKAGE
from accuracy.results import table
from tests import planting
from tests.command_line import TINY, CommandLine

VARIANT = """
from dataclasses import dataclass
from accuracy.core.dtype import Precision
from accuracy.variant.ring import Ring

@dataclass(frozen=True)
class Options:
    flavour: str = "plain"

SCHEDULE = Ring(precision=Precision(ring_direction="previous"), options=Options)
"""
KERNEL = """
from accuracy.kernel.base import Abilities, Kernel
from accuracy.kernel.eager import Eager

class Mine(Kernel):
    def abilities(self, device):
        return Abilities(dtypes=("float32",))

    def build(self, device):
        return Eager()

KERNEL = Mine
"""
INPUTS = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Options:
    width: float = 1.0

def draw(generator, shape, tensor, options):
    return (generator.random(shape) - 0.5) * options.width
"""
PARTS = {
    "variant": (VARIANT, "forward: mine\nbackward: mine\nsharding: contiguous\nflavour: sweet\n"),
    "kernel": (KERNEL, "{}\n"),
    "inputs": (INPUTS, "width: [1.0, 2.0]\n"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for kind, (code, config) in PARTS.items():
        planting.part(tmp_path / "parts", kind, "mine", code, config)
    return tmp_path / "parts"


def test_parts_of_ones_own_run_from_the_command_line(folder: Path, accuracy: CommandLine) -> None:
    words = ("variant=[mine,ring]", "kernel=mine", "inputs=mine", "dtype=float32", "world_size=[1,3]", "output_dir=run")
    answer = accuracy(f"--config-dir={folder}", *TINY, *words, "problem.seqlen=36", "device=cpu")
    assert answer.status == 0, answer.err
    assert "8 measured, 0 unsupported, 0 failed" in answer.out
    results = table.read_results(accuracy.folder / "run")
    assert set(results["variant"]) == {"mine", "ring"}
    assert set(results["kernel"]) == set(results["inputs"]) == {"mine"}
    assert set(results["inputs_options"]) == {"width=1.0", "width=2.0"}
    assert set(results[results["variant"] == "mine"]["options"]) == {"flavour=sweet"}
    assert results["x_single_device"].notna().all()
    assert str(folder.parent) not in " ".join(map(str, results.to_numpy().ravel()))


def test_a_part_of_ones_own_is_not_measured_under_another_s_name(folder: Path, accuracy: CommandLine) -> None:
    """A YAML copied from ring.yaml would measure under ring's name."""
    for package in ("# @package variant.ring\n", ""):
        yaml = f"{package}forward: mine\nbackward: mine\nsharding: contiguous\n"
        (folder / "variant" / "mine.yaml").write_text(yaml)
        answer = accuracy("--config-dir=parts", *TINY, "variant=[ring,mine]", "world_size=1")
        assert (answer.status, answer.err.count("\n")) == (2, 1)
        assert "mine.yaml: its first line must be '# @package variant.mine'" in answer.err


def test_the_contracts_hold_parts_of_ones_own(folder: Path) -> None:
    planting.last(folder, "mine_forgetful", "backward", "dk.zero_()")
    verdicts = []

    class Listening:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call":
                verdicts.append((report.outcome, report.nodeid.partition("[")[2].rstrip("]")))

    files = [str(PACKAGE.parent / "tests/contract" / kind / "test_contract.py") for kind in ("variant", "kernel")]
    given = ("-p", "no:cacheprovider", "-c", str(PACKAGE.parent / "pyproject.toml"), *files)
    chosen = "mine and (reference and causal_gqa or what_it_calls_deterministic)"
    pytest.main([*given, "--config-dir", str(folder), "-k", chosen], [Listening()])
    assert sorted(verdicts) == [
        ("failed", "mine_forgetful-causal_gqa"),
        ("passed", "mine-causal_gqa"),
        ("passed", "mine-cpu-float32"),
    ]
