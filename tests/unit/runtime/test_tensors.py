"""Tensors are rounded to the nearest number, cut for ranks and joined again."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from accuracy.core.dtype import FORMATS
from accuracy.core.sharding import segments
from accuracy.runtime import changes, device
from accuracy.runtime.changes import Changes
from accuracy.runtime.collectives import may_share
from accuracy.runtime.rounding import round_to
from accuracy.runtime.sharding import token_map
from tests.processes import python


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_just_above_a_tie_goes_up(dtype: str) -> None:
    """1 + u is a tie between 1 and 1 + 2u; a little more is none, though float32 cannot see it."""
    u, kind = FORMATS[dtype].unit_roundoff, getattr(torch, dtype)
    x = torch.tensor([1 + u + 2**-40, -(1 + u - 2**-40)], dtype=torch.float64)
    assert round_to(x, kind).tolist() == [1 + 2 * u, -1.0]
    assert float(x.to(kind)[0]) == 1.0  # what torch does, and why this file exists


@pytest.mark.parametrize("dtype", FORMATS)
def test_no_neighbour_is_nearer_and_what_is_no_number_or_zero_stays(dtype: str) -> None:
    kind = getattr(torch, dtype)
    x = torch.randn(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rounded = round_to(x, kind)
    for toward in (-torch.inf, torch.inf):
        neighbour = torch.nextafter(rounded, torch.full_like(rounded, toward))
        assert ((x - rounded.double()).abs() <= (x - neighbour.double()).abs()).all()
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e300], dtype=torch.float64)
    assert torch.equal(round_to(x, kind).nan_to_num(nan=7.0), x.to(kind).nan_to_num(nan=7.0))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_gpu_rounds_to_the_same_bits(dtype: str) -> None:
    """Numbers of all magnitudes, those below the normal ones of each format too."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2**16, dtype=torch.float64, generator=generator) * 2.0 ** torch.linspace(-160, 120, 2**16).double()
    there = round_to(x.cuda(), getattr(torch, dtype)).cpu()
    assert torch.equal(there.double().view(torch.int64), round_to(x, getattr(torch, dtype)).double().view(torch.int64))


def test_the_maps_are_the_published_ones_and_segments_are_runs_of_them() -> None:
    assert token_map("contiguous", 8, 2).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert token_map("zigzag", 8, 2).tolist() == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert token_map("striped", 8, 2).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    for sharding in ("contiguous", "zigzag"):
        for rank, tokens in enumerate(token_map(sharding, 24, 3).tolist()):
            runs = (range(first, first + rows.stop - rows.start) for rows, first in segments(sharding, rank, 8, 3))
            assert [token for run in runs for token in run] == tokens


@pytest.mark.parametrize("pieces", [1, 768])
def test_the_peak_is_what_was_touched_above_what_was_held(pieces: int) -> None:
    """48 MiB touched inside, at once or in pieces of 64 KiB, below the size from which the system maps memory apart:
    pages of 4 KiB and the interpreter's own memory take up to 8 MiB. Memory that was freed before shows again."""
    torch.ones(16 * 2**20)
    for _ in range(2):
        with device.measured("cpu") as cost:
            held = [torch.ones(12 * 2**20 // pieces) for _ in range(pieces)]
        assert 40 * 2**20 < cost.peak_bytes < 56 * 2**20
        del held


SOURCE = "import torch\n{imports}\n\ndef attend(q, k, v):\n    return {body}\n"


def made(imports: str, body: str) -> Any:
    """A function of no file, as one of a notebook or of the standard input."""
    space: dict[str, Any] = {"__name__": "nowhere"}
    exec(SOURCE.format(imports=imports, body=body), space)
    return space["attend"]


def test_code_that_names_torch_distributed_may_share_its_work() -> None:
    class WithGroup:
        def __call__(self, q: Any, k: Any, v: Any, pg: Any = None) -> Any:
            return q

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
    (package / "__init__.py").write_text("def attend(q, k, v):\n    from .ring import ring\n    return ring(q, k, v)\n")
    (package / "ring.py").write_text("import torch.distributed as dist\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert may_share(import_module("shares_late").attend)


def other(*given: Any, **how: Any) -> Any:
    return None


REPLACED: dict[str, tuple[Any, str]] = {
    "torch.nn.functional.softmax": (torch.nn.functional, "softmax"),
    "torch.Tensor.softmax": (torch.Tensor, "softmax"),
    "torch.nn.modules.module.Module.forward": (torch.nn.Module, "forward"),
    "accuracy.runtime.changes.told": (changes, "told"),
}
STATES: dict[str, Callable[[bool], Any]] = {
    "torch's default dtype": lambda on: torch.set_default_dtype(torch.float64 if on else torch.float32),
    "numbers below the normal ones": torch.set_flush_denormal,
    "anomaly detection": torch.autograd.set_detect_anomaly,
}


def test_a_replaced_function_and_a_changed_state_are_named_and_put_back() -> None:
    before = Changes()
    for name, (holder, attribute) in REPLACED.items():
        kept = getattr(holder, attribute)
        setattr(holder, attribute, other)
        assert before.names() == [name]
        before.undo()
        assert (before.names(), getattr(holder, attribute) is kept) == ([], True)
    for name, switch in STATES.items():
        switch(True)
        try:
            assert before.names() == [name]
        finally:
            switch(False)
        assert before.names() == []


def test_new_names_and_what_the_compiler_puts_in_place_are_no_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Changes()
    monkeypatch.setattr(torch, "a_name_of_nobody", other, raising=False)
    monkeypatch.setattr(torch, "manual_seed", torch._disable_dynamo(torch.manual_seed))  # as torch._dynamo's import
    assert torch.manual_seed.__module__ == "torch.random"
    assert before.names() == []
