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

SOURCE = """
import torch
{imports}

def attend(q, k, v):
    return {body}
"""


def made(imports: str, body: str) -> Any:
    """A function of no file, as one of a notebook or of the standard input."""
    space: dict[str, Any] = {"__name__": "nowhere"}
    exec(SOURCE.format(imports=imports, body=body), space)
    return space["attend"]


class WithGroup:
    def __call__(self, q: Any, k: Any, v: Any, pg: Any = None) -> Any:
        return q


@pytest.mark.parametrize(
    ("fn", "shares"),
    [
        (made("", "q"), False),
        (made("import torch.distributed as dist", "q * dist.get_rank()"), True),
        (made("from torch.distributed import get_rank", "q * get_rank()"), True),
        (made("", "q * torch.distributed.get_rank()"), True),
        (partial(made("import torch.distributed as d", "q * d.get_rank()")), True),
        (WithGroup(), True),
        (scaled_dot_product_attention, False),
        (torch.nn.Identity(), False),
    ],
)
def test_code_that_names_torch_distributed_may_share_its_work(fn: Any, shares: bool) -> None:
    assert may_share(fn) == shares


def test_a_function_of_the_script_that_runs_is_read_too(tmp_path: Any) -> None:
    script = SOURCE.format(imports="import torch.distributed as dist", body="q * dist.get_rank()")
    (tmp_path / "script.py").write_text(
        f"{script}\nfrom accuracy.runtime.collectives import may_share\nprint(may_share(attend))\n"
    )
    assert python("script.py", folder=tmp_path).stdout.split() == ["True"]


def test_what_a_function_imports_when_it_is_called_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shares_late"
    package.mkdir()
    (package / "__init__.py").write_text(
        "def attend(q, k, v):\n    from .ring import ring\n\n    return ring(q, k, v)\n"
    )
    (package / "ring.py").write_text("import torch.distributed as dist\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert may_share(import_module("shares_late").attend)
