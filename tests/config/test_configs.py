import re
from dataclasses import fields

import pytest
import torch
from omegaconf import OmegaConf

from accuracy.config import find
from accuracy.config.find import CONTENTS
from accuracy.config.read import Configuration
from accuracy.core import plugins
from accuracy.core.case import Problem
from accuracy.core.errors import ConfigError
from accuracy.core.paths import CONFIGS, EXPERIMENTS, PACKAGE
from accuracy.core.precision import Precision
from accuracy.execute.plan import Planned, plan
from tests.measuring import composed, configuration
from tests.variants import schedules

CHOOSE_KERNELS = {"auto", "every"}  # name others
EVERYTHING = sorted((path.parent.name, path.stem) for path in CONFIGS.glob("*/*.yaml"))
CHOICES = [(group, name) for group, name in EVERYTHING if group != "variant" or name in schedules()]
NEED_CUDA = ("flash_attn_split",)
EXPERIMENT_NAMES = [name for group, name in CHOICES if group == "experiment"]


def config_names(group: str) -> set[str]:
    return {name for kind, name in CHOICES if kind == group}


def missing_kernel(name: str) -> str:
    """Why a kernel cannot run on this device at all, or nothing."""
    if name in CHOOSE_KERNELS:
        return ""
    knobs = plugins.load(find.part("kernel", name).source).KERNEL()
    return str(knobs.abilities("cuda" if torch.cuda.is_available() else "cpu").missing)


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_every_choice_composes_and_plans(group: str, name: str) -> None:
    """Alone in its group, everything else as by default; what this device lacks says why. An experiment has its file's
    name."""
    words = ["world_size=1" if group != "experiment" else "seed=0"]
    words += ["dtype=float16"] if group == "kernel" else []  # which every kernel knows on every device
    alone = ("problem", "decode"), ("kernel", "sage")  # no ring decodes; without lse nothing is joined
    words += ["variant=single_device"] if (group, name) in alone else []
    words += ["problem=captured"] if (group, name) == ("inputs", "captured") else []  # of the shipped file's size
    chosen = composed(f"{group}={name}", *words)
    if group in ("variant", "kernel", "inputs", "world"):  # can be combined: each keeps to its own key
        assert list(chosen[group]) == [name]
    if group == "experiment":
        assert chosen["name"] == name
    composition = configuration(f"{group}={name}", *words)
    missing = missing_kernel(name) if group == "kernel" else ""
    if missing:
        with pytest.raises(ConfigError, match=re.escape(f"kernel {name} {missing}")):
            plan(composition, free_bytes=None)
    elif name in NEED_CUDA and not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="CUDA device"):
            plan(composition, free_bytes=None)
    else:
        assert any(each.unsupported is None for each in planned(composition))


def planned(composition: Configuration) -> list[Planned]:
    """The plan; a package that an experiment asks for and that is missing here skips the test in its own words."""
    try:
        return plan(composition, free_bytes=None)
    except ConfigError as error:
        if "is not installed; pip install" not in str(error):
            raise
        pytest.skip(str(error))


def test_every_choice_has_its_code_and_all_code_is_a_choice() -> None:
    """A module of several parts lists them in `PARTS`."""
    for kind in ("kernel", "inputs"):
        sources = find.sources(kind)
        assert set(sources) == config_names(kind) - CHOOSE_KERNELS
        assert all(hasattr(plugins.load(source), CONTENTS[kind]) for source in sources.values())
        modules = {plugins.module_of(source) for source in sources.values()}
        parts = {f"{name}:{part}" for name in modules for part in getattr(plugins.load(name), "PARTS", ())}
        assert parts == {source for source in sources.values() if ":" in source}
    # and every schedule is a variant's
    used = [OmegaConf.load(CONFIGS / "variant" / f"{name}.yaml") for name in config_names("variant")]
    used_names = {name for variant in used for name in (variant.forward, variant.backward)}
    code = {path.stem for path in (PACKAGE / "variant").glob("[a-z]*.py")}
    assert used_names == code - {"base", "callable", "join"}


def test_a_problem_and_a_precision_are_complete() -> None:
    for name in config_names("problem"):
        assert set(OmegaConf.load(CONFIGS / "problem" / f"{name}.yaml")) == {field.name for field in fields(Problem)}
    for name in config_names("precision"):
        assert set(composed(f"precision={name}")["precision"]) == {field.name for field in fields(Precision)}


def test_an_experiment_prints_its_command_and_says_what_it_asks_what_it_expected_and_what_it_found() -> None:
    for name in EXPERIMENT_NAMES:
        comments = re.findall("^# .*", (CONFIGS / "experiment" / f"{name}.yaml").read_text(), re.MULTILINE)
        assert comments[1].startswith(f"# accuracy experiment={name}")
        lines = (EXPERIMENTS / name / "README.md").read_text().splitlines()
        sections = [line.lstrip("#").strip() for line in lines if line.startswith("##")]
        expected = ["Question", "Prediction", "Finding"]
        assert [section for section in sections if section in expected] == expected, name
