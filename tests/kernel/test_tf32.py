import pytest
import torch

from accuracy.core import plugins
from accuracy.core.paths import PACKAGE
from accuracy.kernel import torch_efficient
from accuracy.kernel.base import Kernel
from accuracy.runtime import arithmetic
from tests.kernel.problem import Problem, relative, results

KERNELS = {path.stem: plugins.load(f"accuracy.kernel.{path.stem}") for path in (PACKAGE / "kernel").glob("[a-z]*.py")}
WITH_KNOB = sorted(name for name, module in KERNELS.items() if hasattr(getattr(module, "KERNEL", None), "tf32"))


def measured(kernel: Kernel, dim: int = 64) -> tuple[list[torch.Tensor], dict[str, float]]:
    """What the kernel returns on CUDA for float32 inputs, and its relative errors by tensor.

    The reference refuses to be computed while the process allows TF32; it comes last, when that no longer matters.
    """
    problem = Problem(queries=130, keys=130, heads_kv=2, dim=dim, scale=dim**-0.5)
    tensors = problem.draw("cuda")
    found = results(kernel, problem, tensors)
    with arithmetic.switched(tf32_products=False):
        return found, relative(found, problem.reference(*tensors))


@pytest.mark.parametrize("name", WITH_KNOB)
def test_tf32_is_unsupported_on_the_cpu(name: str) -> None:
    module = KERNELS[name]
    assert module.KERNEL(tf32=True).abilities("cpu").missing


@pytest.mark.gpu
@pytest.mark.parametrize("name", WITH_KNOB)
def test_the_knob_decides_and_the_switch_is_put_back(name: str) -> None:
    """TF32 keeps 11 bits of the products' factors: scores of size 1 and V are off by about u = 2^-11, and so is out;
    between u / 16 and 16 u. Float32 keeps 24: 16 u = 2^-20, 2^9 below."""
    module = KERNELS[name]
    for before in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = before
        _, allowed = measured(module.KERNEL(tf32=True).build("cuda"))
        _, forbidden = measured(module.KERNEL(tf32=False).build("cuda"))
        assert torch.backends.cuda.matmul.allow_tf32 is before
        for tensor in ("out", "dq", "dk", "dv"):
            assert 2**-15 < allowed[tensor] < 2**-7, tensor
            assert forbidden[tensor] < 2**-20, tensor


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [32, 64, 128, 256])
def test_torch_efficient_uses_three_products_whatever_the_switch_says(dim: int) -> None:
    """Three products of factors split into 11 + 11 bits lose the product of the two low parts: u = 2^-22 of each
    product, and its factors' last two bits. One product in TF32 would lose 2^-11: the bound of 16 u = 2^-18 tells them
    apart. The same bits with the switch on and off: it is not read."""
    kernel = torch_efficient.KERNEL().build("cuda")
    runs = []
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        tensors, errors = measured(kernel, dim)
        runs.append(tensors)
        assert max(errors.values()) < 2**-18, errors
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
