"""Switches are put back; functions on the CPU are first called by one thread.

Two threads at once can get MKL's code of half the digits. They do in up to one process of four, so what is tested is
the order of calls, in a process of its own: each function's first call in each dtype is that of a single element.
"""

import json
from contextlib import suppress

import pytest
import torch

from accuracy.runtime import arithmetic
from tests.processes import python

MKL = (  # IMPLEMENT_VML_MKL of aten/src/ATen/cpu/vml.h in torch 2.13
    "acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log", "log10", "log1p", "log2",
    "sin", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
WATCH = """
import json, torch
from torch.utils._python_dispatch import TorchDispatchMode
from accuracy.runtime import arithmetic

first = {}

class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        name, x = function.overloadpacket.__name__.removesuffix("_"), arguments[0] if arguments else None
        if isinstance(x, torch.Tensor) and x.dtype in (torch.float32, torch.float64):
            first.setdefault(f"{name} {x.dtype}", x.numel())
        return function(*arguments, **(named or {}))

with Watch():
    arithmetic.make_exact()
    from tests.measuring import measure
    rows = measure("kernel=[eager,chunked]", "variant=ring", "dtype=[float32,float64]", "world_size=2",
                   "problem.softcap=5", "problem.seqlen=16", "problem.batch=1", "unusable=record", "device=cpu")
    assert (rows["status"] == "ok").any()
print(json.dumps(first))
"""


def test_a_functions_first_call_is_that_of_one_element() -> None:
    ended = python("-c", WATCH)
    elements = {name: count for name, count in json.loads(ended.stdout).items() if name.split()[0] in MKL}
    assert {"exp", "log", "tanh"} <= {name.split()[0] for name in elements}
    assert set(elements.values()) == {1}, elements


@pytest.mark.parametrize("before", [False, True])
def test_switches_are_put_back_even_after_an_error(before: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = before
    standing = arithmetic.switches()
    with suppress(KeyError), arithmetic.switched(tf32_products=not before, reduced_attention_sums=True):
        inside = arithmetic.switches()
        raise KeyError
    assert (inside.tf32_products, inside.reduced_attention_sums) == (not before, True)
    assert arithmetic.switches() == standing
