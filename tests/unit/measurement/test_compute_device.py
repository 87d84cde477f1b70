"""Small cases of a GPU are compared on the processor. Here tensors that refuse to meet others stand for a GPU's."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from accuracy.core.case import Case
from accuracy.inputs.drawing import Inputs
from accuracy.measurement.compute_device import compute_device
from accuracy.measurement.pipeline import Measured
from tests import measuring
from tests.measuring import COSTS, TINY

RERUNS = ("repeat=2", "poison=true", "unwaited=true", "future=true", "trace=true", "explain=true")


class Far(torch.Tensor):
    """A tensor that says it is on a GPU."""

    device = property(lambda self: torch.device("cuda"))  # type: ignore[assignment]


class Apart(TorchFunctionMode):
    """Refuses what a GPU would: tensors of two devices in one operation, and numpy's view of those there."""

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        with torch._C.DisableTorchFunction():
            name, kwargs = getattr(func, "__name__", ""), kwargs or {}
            given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            far = any(type(x) is Far for x in given)
            mixed = far and name != "__getitem__" and any(type(x) is not Far and x.dim() for x in given)
            if mixed or (far and name == "numpy"):
                raise RuntimeError(f"{name}: tensors of two devices")
            said = [str(x) for x in (*args[1:], *kwargs.values()) if isinstance(x, str | torch.device)]
            places = ["cpu"] if name == "cpu" else [x for x in said if x in ("cpu", "cuda")]
            found = func(*tree_map(_here, args), **tree_map(_here, kwargs))
            far = places[0] == "cuda" if places else far
            return tree_map(_there, found) if far else found


def _here(x: Any) -> Any:
    return x.as_subclass(torch.Tensor) if type(x) is Far else "cpu" if x == torch.device("cuda") else x


def _there(x: Any) -> Any:
    return x.as_subclass(Far) if type(x) is torch.Tensor else x


def case_of(*words: str) -> Case:
    return measuring.case_of(*TINY, "variant=ring", "world_size=2", "device=cpu", *words)


def numbers(found: Measured) -> dict[str, Any]:
    return {name: column for name, column in found.results.items() if name not in COSTS}


@pytest.mark.parametrize("words", [
    tuple(f"reruns.{each}" for each in RERUNS),
    ("problem.sinks=0", "conditions=true", "dtype=float32"),
    ("inputs=one_hot", "problem.seqlen=4", "problem.heads=2", "problem.heads_kv=1", "kernel=torch_flash"),
    ("problem.dropout=0.25", "kernel=eager", "reruns.trace=true", "reruns.explain=true", "dtype=float64"),
])  # fmt: skip
def test_kernels_alone_see_a_gpu(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(*words)
    here = measuring.pipeline().measure(case)
    monkeypatch.setattr(Inputs, "on", lambda self, device: Inputs(*map(_there, (x.clone() for x in self.tensors))))
    with Apart():
        there = measuring.pipeline().measure(case)
    assert there.status == "ok", there.traceback
    assert numbers(there) == pytest.approx(numbers(here), nan_ok=True, rel=0, abs=0)
    assert [dict(row) for row in there.table("steps")] == [dict(row) for row in here.table("steps")]


def test_the_stand_in_refuses_what_a_gpu_refuses() -> None:
    x = torch.ones(2)
    with Apart():
        for refused in (lambda: _there(x.clone()) + x, lambda: _there(x.clone()).numpy()):
            with pytest.raises(RuntimeError, match="two devices"):
                refused()


def test_what_is_large_or_compared_with_other_paths_stays_on_the_gpu() -> None:
    small = replace(case_of("kernel=eager"), device="cuda")
    assert compute_device(small) == "cpu"
    middle = replace(small, problem=replace(small.problem, batch=1, seqlen=528, heads=8, heads_kv=2, head_dim=32))
    assert [compute_device(middle, alone=alone) for alone in (False, True)] == ["cpu", "cuda"]
    large, decoding = replace(small.problem, seqlen=65536), replace(small.problem, seqlen=131072, seqlen_q=1)
    away = [replace(small, problem=problem) for problem in (large, decoding)]
    away.append(replace(case_of("kernel=eager", "reruns.batchmates=4"), device="cuda"))
    assert {compute_device(each) for each in away} == {compute_device(small, "fused")} == {"cuda"}
