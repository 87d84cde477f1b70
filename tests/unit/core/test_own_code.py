"""A function's code is that of every file of the user's that decides what it computes, however it was reached."""

import importlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from accuracy.core import own_code, plugins
from accuracy.measurement.provenance import _digest_of_parts

FILES = {
    "theirs/__init__.py": "from .ring import attend, wrapped",
    "theirs/ring.py": "import math\nfrom helper import wrap\nfrom . import scale\n\ndef attend(q):\n"
    "    from theirs.late import merge\n    return merge(q)\n\nwrapped = wrap(attend)\n",
    "theirs/scale.py": "FACTOR = 2",
    "theirs/late.py": "def merge(q):\n    return q",
    "theirs/unused.py": "",
    "helper.py": "import functools\n\ndef wrap(fn):\n    @functools.wraps(fn)\n    def inner(*given):\n"
    "        return fn(*given)\n    return inner\n",
}
"""Of a package every file counts, of a module on its own that module."""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield importlib.import_module("theirs")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("theirs", "helper")]:
        del sys.modules[name]


def test_re_exports_decorators_and_the_whole_package_are_followed_and_any_change_is_another_code(theirs: Any) -> None:
    attend = theirs.attend
    for function in (attend, theirs.wrapped, partial(attend, 1), attend.__get__(object())):
        assert own_code.files(function) == [Path(name).resolve() for name in sorted(FILES)]
    codes = [own_code.digest(own_code.files(attend)) for _ in range(2)]
    assert codes[0] == codes[1]
    for name in FILES:
        Path(name).write_text(f"{FILES[name]}\nCHANGED = 1\n")
        codes.append(own_code.digest(own_code.files(attend)))
    assert len({*codes}) == 1 + len(FILES)


def test_an_edit_that_this_process_has_not_loaded_is_no_code_that_another_process_has(
    theirs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = []
    for edited, process in ((False, b"one"), (False, b"another"), (True, b"one"), (True, b"another")):
        stamp = plugins.STARTED + (10 if edited else -10)
        for name in FILES:
            os.utime(name, (stamp, stamp))
        monkeypatch.setattr(plugins, "PROCESS", process)
        plugins.hand_over({"attend": theirs.attend})
        codes.append(plugins.load_function("given:attend").code)
    plugins.hand_over({})
    assert (codes[0] == codes[1], len({*codes})) == (True, 3)


def test_a_part_s_code_has_the_modules_of_the_user_s_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper_of_a_part.py").write_text("FACTOR = 1\n")
    part = tmp_path / "part.py"
    part.write_text("from accuracy.variant import ring\nimport helper_of_a_part\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    before = _digest_of_parts.__wrapped__((str(part),))
    (tmp_path / "helper_of_a_part.py").write_text("FACTOR = 20\n")
    assert _digest_of_parts.__wrapped__((str(part),)) != before


def test_a_mock_that_answers_every_name_has_few_layers() -> None:
    """A function that closed over one never came to its first case."""
    spy = mock.MagicMock()
    assert len(own_code.layers(lambda: spy())) <= own_code.MOST_LAYERS
    own_code.files(spy)
