"""Whether a function may share its work is read off its parameters and off the code that it is made of."""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from accuracy.runtime.collectives import may_share
from tests.processes import python

SOURCE = "import torch\n{imports}\n\ndef attend(q, k, v):\n    return {body}\n"


def made(imports: str, body: str) -> Any:
    """A function of no file, as one of a notebook or of the standard input."""
    space: dict[str, Any] = {"__name__": "nowhere"}
    exec(SOURCE.format(imports=imports, body=body), space)
    return space["attend"]


class WithGroup:
    def __call__(self, q: Any, k: Any, v: Any, pg: Any = None) -> Any:
        return q


def test_code_that_names_torch_distributed_may_share_its_work() -> None:
    for fn in (
        made("import torch.distributed as dist", "q * dist.get_rank()"),
        made("from torch.distributed import get_rank", "q * get_rank()"),
        made("", "q * torch.distributed.get_rank()"),
        partial(made("import torch.distributed as d", "q * d.get_rank()")),
        WithGroup(),
    ):
        assert may_share(fn), fn
    for fn in (made("", "q"), scaled_dot_product_attention, torch.nn.Identity()):
        assert not may_share(fn), fn


def test_a_function_of_the_script_that_runs_and_what_it_imports_late_are_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = SOURCE.format(imports="import torch.distributed as dist", body="q * dist.get_rank()")
    more = "\nfrom accuracy.runtime.collectives import may_share\nprint(may_share(attend))\n"
    (tmp_path / "script.py").write_text(script + more)
    assert python("script.py", folder=tmp_path).stdout.split() == ["True"]
    package = tmp_path / "shares_late"
    package.mkdir()
    (package / "__init__.py").write_text(
        "def attend(q, k, v):\n    from .ring import ring\n\n    return ring(q, k, v)\n"
    )
    (package / "ring.py").write_text("import torch.distributed as dist\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert may_share(import_module("shares_late").attend)
