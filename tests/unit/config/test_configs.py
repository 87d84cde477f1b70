"""Every choice on disk composes, plans and has its code; and so does a part of one's own, one Python file and one YAML
file: listed, run and held to the contract as it lies there."""

import re
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from accuracy.config import find
from accuracy.config.find import CONTENTS
from accuracy.core import plugins
from accuracy.core.errors import ConfigError
from accuracy.core.paths import CONFIGS, EXPERIMENTS, PACKAGE
from accuracy.execute.plan import plan
from accuracy.results import table
from tests import planting
from tests.command_line import TINY, CommandLine
from tests.measuring import composed, configuration
from tests.variants import schedules

CHOOSE_KERNELS = {"auto"}  # names others
EVERYTHING = sorted((path.parent.name, path.stem) for path in CONFIGS.glob("*/*.yaml"))
CHOICES = [(group, name) for group, name in EVERYTHING if group != "variant" or name in schedules()]
BESIDE = {  # no ring decodes; of the shipped file's size
    ("problem", "decode"): ["variant=single_device"], ("inputs", "captured"): ["problem=captured"],
}  # fmt: skip


def config_names(group: str) -> set[str]:
    return {name for kind, name in CHOICES if kind == group}


def missing_here(group: str, name: str) -> str:
    """Why a choice cannot run on this device at all, or nothing."""
    if (group, name) == ("variant", "flash_attn_split"):
        return "" if torch.cuda.is_available() else "CUDA device"
    if group != "kernel" or name in CHOOSE_KERNELS:
        return ""
    knobs = plugins.load(find.part("kernel", name).source).KERNEL()
    missing = knobs.abilities("cuda" if torch.cuda.is_available() else "cpu").missing
    return f"kernel {name} {missing}" if missing else ""


TOGETHER = ("variant", "kernel", "inputs")  # many of a group are one composition
APART = [each for each in CHOICES if each[0] not in TOGETHER or each[1] in CHOOSE_KERNELS or each in BESIDE]
CHOSEN = [(group, sorted(config_names(group) - {name for kind, name in APART if kind == group})) for group in TOGETHER]
CHOSEN += [(group, [name]) for group, name in APART]


@pytest.mark.parametrize(("group", "names"), CHOSEN, ids=lambda given: given if isinstance(given, str) else given[-1])
def test_every_choice_composes_and_plans(group: str, names: list[str]) -> None:
    """Everything else as by default. Each keeps to its own key; what this device lacks says why."""
    words = ["seed=0" if group == "experiment" else "world_size=1", *BESIDE.get((group, names[0]), ())]
    words += ["dtype=float16"] if group == "kernel" else []  # which every kernel knows on every device
    words += [f"{group}=[{','.join(names)}]" if len(names) > 1 else f"{group}={names[0]}", "unusable=record"]
    chosen = composed(*words)
    if group in (*TOGETHER, "world"):  # can be combined
        assert sorted(chosen[group]) == names
    if group == "experiment":
        assert chosen["name"] == names[0]
    try:
        plans = plan(configuration(*words), free_bytes=None)
    except ConfigError as error:
        if not re.search("is not installed; pip install|needs a GPU", str(error)):
            raise
        pytest.skip(str(error))  # a package or a GPU that an experiment asks for
    for name in names:
        own = [each for each in plans if len(names) == 1 or getattr(each.case, group).name == name]
        reasons, missing = [str(each.unsupported or "") for each in own], missing_here(group, name)
        assert any(missing in reason if missing else reason == "" for reason in reasons), (name, reasons)


def test_every_choice_has_its_code_and_all_code_is_a_choice() -> None:
    """A module of several parts lists them in `PARTS`."""
    for kind in ("kernel", "inputs"):
        sources = find.sources(kind)
        assert set(sources) == config_names(kind) - CHOOSE_KERNELS
        assert all(hasattr(plugins.load(source), CONTENTS[kind]) for source in sources.values())
        modules = {plugins.module_of(source) for source in sources.values()}
        parts = {f"{name}:{part}" for name in modules for part in getattr(plugins.load(name), "PARTS", ())}
        assert parts == {source for source in sources.values() if ":" in source}
    used = [OmegaConf.load(CONFIGS / "variant" / f"{name}.yaml") for name in config_names("variant")]
    code = {path.stem for path in (PACKAGE / "variant").glob("[a-z]*.py")}
    assert {name for each in used for name in (each.forward, each.backward)} == code - {"base", "callable", "join"}


@pytest.mark.parametrize("name", sorted(config_names("experiment")))
def test_an_experiment_prints_its_command_and_says_what_it_asks_expected_and_found(name: str) -> None:
    comments = re.findall("^# .*", (CONFIGS / "experiment" / f"{name}.yaml").read_text(), re.MULTILINE)
    assert comments[1].startswith(f"# accuracy experiment={name}")
    heads = re.findall(r"^##+ *(Question|Prediction|Finding)$", (EXPERIMENTS / name / "README.md").read_text(), re.M)
    assert heads == ["Question", "Prediction", "Finding"]


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
