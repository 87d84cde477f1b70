"""Time and memory of memory-efficient attention beside plain products, on the shapes of xformers PR #281, and of lse.

    python -m experiments.memory_efficient.cost FOLDER

float32, TF32 off, one head, no mask, q = k = v = torch.rand. `plain` is the pull request's own comparison (products,
softmax, product, gradients by autograd), `efficient` torch's kernel that descends from xformers', with and without the
log-sum-exp that its backward needs. Written is FOLDER/cost.csv: ms; MiB at the peak beyond the inputs.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from accuracy.runtime import arithmetic, device

BATCHES, LENGTHS, DIMS = (1, 8, 32, 256), (127, 128, 512, 513, 1023, 1024), (16, 32)
REPEATS = 10
Call = Callable[[], object]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """out (B, M, K), as `ref_attention` of the pull request."""
    weights = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    return weights.softmax(-1) @ v


def efficient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    backend = SDPBackend.EFFICIENT_ATTENTION if q.is_cuda else SDPBackend.MATH
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(*(x[:, None] for x in (q, k, v)))[:, 0]


def lse_kept(q: Tensor, k: Tensor, v: Tensor, kept: bool) -> object:
    return torch.ops.aten._scaled_dot_product_efficient_attention(*(x[:, None] for x in (q, k, v)), None, kept)


def ways(shape: tuple[int, ...], where: str) -> Iterator[tuple[str, str, Call]]:
    q = torch.rand(shape, device=where)
    leaf = q.clone().requires_grad_()
    for name, form in (("plain", plain), ("efficient", efficient)):

        def both(form: Callable[..., Tensor] = form) -> object:
            return torch.autograd.grad(form(leaf, leaf, leaf), leaf, grad_outputs=q)

        yield name, "forward", lambda form=form: form(q, q, q)
        yield name, "both", both
    if where == "cuda":
        for name, kept in (("efficient, lse kept", True), ("efficient, no lse", False)):
            yield name, "forward", lambda kept=kept: lse_kept(q, q, q, kept)


def cost(call: Call, on_gpu: bool) -> tuple[float, float]:
    """ms of the fastest call, between two events, as others may share the GPU, and the peak in MiB (0 on a CPU)."""
    call()
    with device.measured("cuda" if on_gpu else "cpu") as took:
        call()
    if not on_gpu:
        return 1000 * took.seconds, 0.0
    return min(device.between_events(call, REPEATS)), (took.peak_bytes or 0) / 2**20


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("folder", type=Path)
    words.add_argument("--device", default="cuda")
    words.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    told = words.parse_args()
    arithmetic.make_exact()
    rows = []
    for batch in told.batches:
        for shape in ((batch, length, dim) for length in LENGTHS for dim in DIMS):
            for name, way, call in ways(shape, told.device):
                took, peak = cost(call, told.device == "cuda")
                about = dict(zip(("batch", "length", "head_dim"), shape, strict=True))
                rows.append({**about, "form": name, "way": way, "ms": took, "peak_mib": peak})
    told.folder.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame(rows)
    table.to_csv(told.folder / "cost.csv", index=False, float_format="%.4g")
    print(table.pivot_table(index=["batch", "length", "head_dim"], columns=["form", "way"], values="ms").to_string())


if __name__ == "__main__":
    main()
