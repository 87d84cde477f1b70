"""Hopper's FP8 accumulator over a million keys, by emulation on a CPU: at which flush interval is its error gone?

python experiments/fp8_accumulator/million.py: about a minute and 2 GiB. Four queries, one head of 64, forward, full
mask; the error of out against float64 on the inputs as given.
"""

import torch

from accuracy.kernel.quantised import KERNEL

KEYS, QUERIES, DIM = 2**20, 4, 64
FLUSH = (0, 32768, 8192, 2048, 512, 128)


def lost(policy: str, flush: int, inputs: str, seed: int) -> tuple[float, float]:
    """Relative error, and signed mean over the root mean square of out."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.rand if inputs == "uniform" else torch.randn
    q, k, v = (made(1, length, 1, DIM, generator=generator) for length in (QUERIES, KEYS, KEYS))
    scores = q[0, :, 0].double() @ k[0, :, 0].double().T * DIM**-0.5
    exact = (scores.softmax(-1) @ v[0, :, 0].double())[None, :, None]
    kernel = KERNEL(policy=policy, flush_interval=flush or None, key_chunk=8192)
    out, _ = kernel.forward(q, k, v, scale=DIM**-0.5, causal=False, out_dtype=q.dtype)
    error = out.double() - exact
    return float(error.norm() / exact.norm()), float(error.mean() / exact.square().mean().sqrt())


if __name__ == "__main__":
    torch.set_num_threads(1)
    for inputs in ("uniform", "gaussian"):
        for policy, flush in (("fp8_tensor", 0), *(("fp8_hopper", each) for each in FLUSH)):
            found = lost(policy, flush, inputs, seed=0)
            name = f"14 bits, flushed every {flush:,} keys" if flush else "14 bits"
            name = "float32 sums" if policy == "fp8_tensor" else name
            print(f"{inputs:9s} {name:36s} relative {found[0]:.3e}, signed {found[1]:+.3%}", flush=True)
