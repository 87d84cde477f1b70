"""Does a bias of out explain dq and dk of `uniform` in float16? python -m experiments.inputs_that_matter.out_bias.

A backward gets an out that is too small by a share, on a CPU, whose own out has no such bias. delta = sum_d dout out
is too small in every row by the same, d, so that each slope p (dp - delta) is too large by p d: dq moves by
scale mean(k) d on average, and dk by group times scale mean(q) d, group query heads sharing a key/value head.
"""

import torch

from accuracy.kernel.eager import Eager
from accuracy.reference.float64 import attention

S, D, GROUP = 2048, 128, 4
SHIFTS = (0.0, -2.6e-5)  # the H200's flash-attn, relative bias of out at 8,192 tokens in float16


def main() -> None:
    """Print the bias of out, and relative errors, biases and predicted biases of dq and dk."""
    generator, kernel, scale = torch.Generator().manual_seed(0), Eager(), D**-0.5
    drawn = (torch.rand(1, S, heads, D, generator=generator, dtype=torch.float64) for heads in (GROUP, 1, 1, GROUP))
    q, k, v, dout = (x.half() for x in drawn)
    reference = attention(q, k, v, dout, scale=scale, causal=True)
    unrounded, lse = kernel.forward(q, k, v, scale=scale, causal=True, out_dtype=torch.float32)
    print(f"out before rounding: relative bias {float((unrounded - reference.out).mean() / reference.out.mean()):.1e}")
    for shift in SHIFTS:
        out = (unrounded.double() * (1 + shift)).half()
        low = -float((dout.double() * (out.double() - reference.out)).sum(-1).mean())
        dq, dk, _ = kernel.backward(
            dout, q, k, v, out, lse, scale=scale, causal=True, gradient_dtype=torch.float16
        )  # fmt: skip
        for name, x, exact, heads in (("dq", dq, reference.dq, 1), ("dk", dk, reference.dk, GROUP)):
            error = x.double() - exact
            numbers = float(error.norm() / exact.norm()), float(error.mean()), heads * scale * 0.5 * low
            told = "error_rel {:.2g}, bias {:.2e}, predicted {:.2e}".format(*numbers)
            print(f"out times 1 + {shift}: {name} {told}")


if __name__ == "__main__":
    main()
