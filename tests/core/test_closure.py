import sys
from pathlib import Path

import pytest

from accuracy.core.closure import closure

FILES = {
    "__init__.py": "from made.ring import attend",
    "ring.py": "import math\nfrom . import scale\n\ndef attend():\n    from made.late import merge",
    "scale.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import made.unused\nVALUE = 2",
    "late.py": "",
    "unused.py": "",
}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "made"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "made"]:
        del sys.modules[name]


def test_all_that_a_module_imports_is_found_and_nothing_else(made: Path) -> None:
    assert list(closure(["made.ring"], lambda name: name.startswith("made"))) == [
        "made",
        "made.late",
        "made.ring",
        "made.scale",
    ]


def test_what_measures_is_in_a_case_s_closure_and_what_shows_is_not() -> None:
    found = closure(["accuracy.measurement.pipeline", "accuracy.kernel.eager"])
    assert {"accuracy.measurement.metrics", "accuracy.reference.float64", "accuracy.kernel.eager"} <= set(found)
    assert not {name for name in found if name.startswith(("accuracy.report", "accuracy.gate", "accuracy.cli"))}
    assert "accuracy.kernel.torch_flash" not in found
