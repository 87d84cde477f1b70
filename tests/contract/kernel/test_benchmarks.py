"""Benchmarks on a GPU time kernels that exist, on the call that they name: what they need is asked on a CPU."""

import pytest
import torch

from accuracy.core import plugins
from accuracy.kernel.base import Kernel
from bench import kernels, split_kv


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_a_timed_kernel_can_be_built_with_its_options(name: str) -> None:
    source, options = kernels.KERNELS[name]
    built = plugins.build_options(plugins.load(f"accuracy.kernel.{source}"), tuple(options.items()))
    assert isinstance(built.abilities("cpu").missing, str)


def test_parts_that_are_joined_give_the_unsplit_out() -> None:
    kernel: Kernel = plugins.build_options(plugins.load("accuracy.kernel.in_torch:torch_flash"), ()).build("cpu")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, tokens, 4, 128, generator=generator).bfloat16() for tokens in (1, 256, 256))
    whole = kernel.forward(q, k, v, scale=split_kv.SCALE, causal=True, out_dtype=q.dtype)[0]
    joined = split_kv.one_after_other(kernel, 8)(q, k, v)  # type: ignore[arg-type]
    assert (joined - whole).norm() / whole.norm() < split_kv.CLOSE
    lost = split_kv.one_after_other(kernel, 8)(q, k[:, : 256 - 32], v[:, : 256 - 32])  # type: ignore[arg-type]
    assert (lost - whole).norm() / whole.norm() > split_kv.CLOSE
